//! Sets the soname of the shared object, and generates the callers with which its tests make every listed
//! call.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // This library's look-ups resolve to its own symbols, wherever in the process the real libraries are.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let lists = ["../memfit-cuda/api", "../memfit-cuda-libraries/api"];
    for folder in lists {
        println!("cargo:rerun-if-changed={folder}");
    }
    memfit_prototypes::generate_callers(&lists);
}
