//! Generates the entry points that the prototype lists (`api/*.api`) call harmless or refused.

fn main() {
    println!("cargo:rerun-if-changed=api");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // What this library looks up is its own, wherever in the process the real libraries stand.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    memfit_prototypes::generate();
}
