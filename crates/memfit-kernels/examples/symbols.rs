//! Lists the kernels of a shared object with CUDA code, one per line: the mangled name, a tab, and the bytes
//! of each parameter. `make symbols` uses it to build the tables of PyTorch's releases.

use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    io::{self, Write},
};

use memfit_kernels::binary::{
    cubin::{self, Function},
    fatbin::{self, Image, Kind},
};

/// Architecture whose machine code is preferred if there is code for several; parameters are the same for
/// all.
const CARD: u32 = 90;

/// Splits a section into its containers, each of which begins at a multiple of eight bytes.
fn containers(mut section: &[u8]) -> impl Iterator<Item = &[u8]> {
    const ALIGNMENT: usize = 8;
    std::iter::from_fn(move || {
        while section.len() >= fatbin::HEADER {
            match fatbin::container_size(section).filter(|size| *size <= section.len()) {
                Some(size) => {
                    let (container, rest) = section.split_at(size);
                    let padding = size.next_multiple_of(ALIGNMENT) - size;
                    section = rest.get(padding..).unwrap_or_default();
                    return Some(container);
                }
                None => section = &section[ALIGNMENT..],
            }
        }
        None
    })
}

/// Selects the machine code of a container: for the preferred architecture, else the last.
fn machine_code<'i, 'b>(images: &'i [Image<'b>]) -> Option<&'i Image<'b>> {
    let machine = || images.iter().filter(|image| image.kind == Kind::Machine);
    machine().find(|image| image.target.runs_on(CARD)).or_else(|| machine().next_back())
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: symbols LIBRARY")?;
    let library = fs::read(&path)?;
    let sections = cubin::sections(&library).ok_or("it is not a shared object")?;
    let mut kernels: BTreeMap<String, Function> = BTreeMap::new();
    for section in sections.iter().filter(|section| section.name.ends_with("nv_fatbin")) {
        for container in containers(section.data) {
            let images = fatbin::images(container);
            if let Some(image) = machine_code(&images) {
                kernels.extend(cubin::functions(&image.unpack()?));
            }
        }
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (name, function) in &kernels {
        let sizes: Vec<String> = function.params.iter().map(|param| param.size.to_string()).collect();
        writeln!(out, "{name}\t{}", sizes.join(" "))?;
    }
    Ok(out.flush()?)
}
