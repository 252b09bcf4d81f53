//! Generates the entry points that the prototype lists (`api/*.api`) declare harmless or refused.

fn main() {
    println!("cargo:rerun-if-changed=api");
    println!("cargo:rerun-if-changed=build.rs");
    memfit_prototypes::generate();
}
