//! Checks that calls do what the documentation of their [`Class`] promises.

#![allow(unsafe_code, reason = "the test bench calls C functions")]

use std::ffi::{CString, c_char};

use super::Loaded;
use super::call::{Answer, Argument, Callers};
use super::canary::Canary;
use crate::{Class, Entry, Flow, Kind, Library};

/// Checks that a harmless call succeeds for any arguments, and writes exactly its out-parameters.
pub fn check_harmless(library: &Loaded, callers: &Callers, entry: &Entry) -> Result<(), String> {
    let parameters = entry.parameters.as_deref().ok_or("its parameters are unknown")?;
    let caller = callers.get(&entry.name).ok_or("no caller was generated")?;
    let room = vec![0_u64; 512];
    let mut canaries: Vec<Option<Canary>> =
        parameters.iter().map(|each| (each.flow == Flow::Out).then(|| Canary::new(each))).collect();
    for round in 0..2 {
        let mut arguments = Vec::new();
        for (parameter, canary) in parameters.iter().zip(&mut canaries) {
            arguments.push(match (canary, &parameter.kind) {
                (Some(canary), _) => Argument::new(canary.address(round)),
                (None, Kind::F32) => Argument::new(1.5_f32),
                (None, Kind::F64) => Argument::new(1.5_f64),
                (None, Kind::Int | Kind::U32 | Kind::I64 | Kind::U64 | Kind::Size | Kind::U8 | Kind::U16) => {
                    Argument::new(1_u64)
                }
                (None, Kind::Complex32 | Kind::Complex64 | Kind::Bytes(_)) => Argument::new([0_u64; 32]),
                (None, _) => Argument::new(room.as_ptr()),
            });
        }
        // SAFETY: the arguments have the prototype's kinds, and point to enough memory for any of them.
        let answer = unsafe { caller(library.symbol(&entry.name), &arguments) };
        if entry.result == Kind::Status && answer != Answer::Number(0) {
            return Err(format!("answered {answer:?}"));
        }
    }
    for (index, canary) in canaries.iter().enumerate() {
        if let Some(canary) = canary {
            canary.judge().map_err(|what| format!("parameter {index}: {what}"))?;
        }
    }
    if room.iter().any(|word| *word != 0) {
        return Err("wrote to a parameter that is not an out-parameter".to_owned());
    }
    Ok(())
}

/// Checks that a refused call returns the library's own "not supported", and is counted under its name:
/// `counter` is the exported function that returns the count.
pub fn check_refused(
    library: &Loaded,
    callers: &Callers,
    list: &Library,
    counter: &str,
) -> Result<(), String> {
    // SAFETY: that is this function's prototype.
    let count: unsafe extern "C" fn(*const c_char) -> u64 =
        unsafe { std::mem::transmute(library.symbol(counter)) };
    let arguments = vec![Argument::new([0_u64; 32]); 40];
    for entry in list.entries.iter().filter(|entry| entry.class == Class::Refused) {
        let address = library.symbol(&entry.name);
        let answer = if let Some(caller) = callers.get(&entry.name) {
            // SAFETY: a refused call reads none of its arguments.
            unsafe { caller(address, &arguments) }
        } else {
            // SAFETY: a refused call reads none of its arguments, so it can be called without any: in C's
            // calling convention, the caller removes arguments.
            let function: unsafe extern "C" fn() -> u64 = unsafe { std::mem::transmute(address) };
            // SAFETY: as above.
            Answer::Number(unsafe { function() } as i64)
        };
        if entry.result == Kind::Status && answer != Answer::Number(list.refusal.into()) {
            return Err(format!("{} answered {answer:?}, not {}", entry.name, list.refusal));
        }
        let name = CString::new(entry.name.as_str()).map_err(|_| "a name with NUL")?;
        // SAFETY: the name ends with NUL.
        let counted = unsafe { count(name.as_ptr()) };
        if counted != 1 {
            return Err(format!("{} was counted {counted} times, not once", entry.name));
        }
    }
    Ok(())
}
