//! Detects whether libjpeg-turbo is built with its SIMD code, which needs an assembler.

use std::process::{Command, Stdio};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PATH");
    println!("cargo::rustc-check-cfg=cfg(turbo_simd)");
    let assembler = |name: &str| {
        Command::new(name)
            .arg("-v")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if std::env::var_os("CARGO_FEATURE_TURBO").is_some() && assembler("nasm") {
        println!("cargo::rustc-cfg=turbo_simd");
    }
}
