//! Generates the entry points that the prototype list (`api/nvml.api`) marks as harmless or refused.

fn main() {
    println!("cargo:rerun-if-changed=api");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    memfit_prototypes::generate();
    memfit_prototypes::generate_callers(&["api"]);
}
