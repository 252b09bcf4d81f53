//! Tests of properties: in the layout of the headers, and equal to the attributes.

use std::{collections::BTreeMap, env, fs, path::PathBuf, process::Command};

use crate::{
    cuda::*,
    machine::{CAPACITY, enter},
};

#[test]
fn attributes_are_the_cards() {
    enter();
    for (attribute, value) in
        [(1, 1024), (10, 32), (16, 128), (75, 8), (76, 9), (39, 1536), (97, 101_376), (41, 1), (102, 1)]
    {
        assert_eq!(out(|answer| cudaDeviceGetAttribute(answer, attribute, 0)), value, "{attribute}");
    }
    for wrong in [-1, 0, 10_000] {
        assert_eq!(cudaDeviceGetAttribute(&mut 0, wrong, 0), INVALID_VALUE, "{wrong}");
    }
    assert_eq!(cudaDeviceGetAttribute(&mut 0, 1, 9), INVALID_DEVICE);
    cudaGetLastError();
}

/// Names and offsets of `cudaDeviceProp`'s fields as a C compiler sees them in a header.
fn fields(include: &str, names: &[&str]) -> BTreeMap<String, usize> {
    let folder = env::temp_dir().join(format!("memfit-properties-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    // The runtime's wheel lacks this header, which the compiler's wheel has; it does not affect the layout.
    fs::create_dir_all(folder.join("crt")).unwrap();
    let host = "#define __device_builtin__\n#define __host__\n#define __cudart_builtin__\n#define CUDARTAPI\n\
        #define __align__(n) __attribute__((aligned(n)))\n#define __builtin_align__(n) __align__(n)\n\
        #define __device_builtin_texture_type__\n#define __device_builtin_surface_type__\n";
    fs::write(folder.join("crt/host_defines.h"), host).unwrap();
    let mut code =
        "#include <stddef.h>\n#include <stdio.h>\n#include \"driver_types.h\"\nint main(void) {\n".to_owned();
    for name in names {
        let line = format!("printf(\"{name} %zu\\n\", offsetof(struct cudaDeviceProp, {name}));\n");
        code.push_str(&line);
    }
    code += "printf(\"size %zu\\n\", sizeof(struct cudaDeviceProp));\nreturn 0; }\n";
    let (source, program) = (folder.join("fields.c"), folder.join("fields"));
    fs::write(&source, code).unwrap();
    let status = Command::new("cc")
        .arg("-I")
        .arg(&folder)
        .arg("-I")
        .arg(include)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success(), "cc cannot compile against {include}");
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    text.lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, offset)| (name.to_owned(), offset.parse().unwrap()))
        .collect()
}

/// Include folders of the CUDA runtime in the Python environments that `MEMFIT_TEST_SITE_PACKAGES` lists.
fn includes() -> Vec<PathBuf> {
    let list = env::var_os("MEMFIT_TEST_SITE_PACKAGES").unwrap_or_default();
    env::split_paths(&list)
        .flat_map(|site| {
            ["nvidia/cu13/include", "nvidia/cuda_runtime/include"].map(|folder| site.join(folder))
        })
        .filter(|folder| folder.join("driver_types.h").exists())
        .collect()
}

#[test]
fn properties_lie_where_the_headers_say() {
    enter();
    for include in includes() {
        let version = fs::read_to_string(include.join("cuda_runtime_api.h")).unwrap();
        let number = version.split("CUDART_VERSION").nth(1).unwrap().trim_start();
        let major: i32 =
            number.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<i32>().unwrap()
                / 1000;
        let layout = memfit_vgpu::property_layout(major).unwrap();
        let names: Vec<&str> = layout.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
        let expected = fields(include.to_str().unwrap(), &names);
        for (name, offset) in &layout {
            let name = if name.is_empty() { "size" } else { name };
            assert_eq!(expected[name], *offset, "{name} in {}", include.display());
        }
    }
}

#[test]
fn properties_hold_the_cards_figures() {
    enter();
    let mut bytes = vec![0xffu8; 1032];
    assert_eq!(cudaGetDeviceProperties_v2(bytes.as_mut_ptr(), 0), 0);
    assert!(bytes.starts_with(b"NVIDIA GeForce RTX 4090\0"));
    let layout = memfit_vgpu::property_layout(12).unwrap();
    let at = |name: &str| layout.iter().find(|(field, _)| *field == name).unwrap().1;
    let int = |name| i32::from_ne_bytes(bytes[at(name)..at(name) + 4].try_into().unwrap());
    let size = |name| u64::from_ne_bytes(bytes[at(name)..at(name) + 8].try_into().unwrap());
    assert_eq!(size("totalGlobalMem"), CAPACITY);
    assert_eq!((int("major"), int("minor"), int("multiProcessorCount")), (8, 9, 128));
    assert_eq!(size("sharedMemPerBlockOptin"), 101_376);
    assert_eq!(int("reserved"), 0);
}
