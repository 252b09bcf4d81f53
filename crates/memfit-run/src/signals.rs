//! Signals that end a script: their names, and what the user can conclude from one.

/// Name of a signal.
pub(crate) fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGHUP => "SIGHUP",
        libc::SIGILL => "SIGILL",
        libc::SIGINT => "SIGINT",
        libc::SIGKILL => "SIGKILL",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGTERM => "SIGTERM",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGXCPU => "SIGXCPU",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

/// Signals by which the processor or a C library ends a process whose compiled code went wrong.
const CRASHES: &[i32] =
    &[libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGTRAP];

/// Returns `true` if compiled code crashed: nobody sent the signal on purpose.
pub(crate) fn is_crash(signal: i32) -> bool {
    CRASHES.contains(&signal)
}

/// Hint for a script that a signal ended; `on_virtual_gpu` is `true` if it had used a virtual GPU.
pub(crate) fn hint(signal: i32, on_virtual_gpu: bool) -> Option<&'static str> {
    match signal {
        _ if is_crash(signal) && on_virtual_gpu => Some(
            "compiled code crashed, and memfit cannot tell in which library. A library can crash on a virtual GPU and not on a real one: try another release of PyTorch, another `--gpu`, or a real GPU with `--gpu local`. If the script runs on a real GPU, please report this as memfit's fault",
        ),
        _ if is_crash(signal) => Some(
            "compiled code crashed before the script used the GPU: `--show-output` shows what it printed",
        ),
        libc::SIGKILL => Some(
            "Linux kills processes if the machine or the container runs out of memory; that is the memory of the host, not of the GPU. Look for it with `dmesg` or in the job's log; fewer workers or a smaller data set may help",
        ),
        libc::SIGTERM => Some("a scheduler or another program asked it to end; memfit did not"),
        libc::SIGXCPU => Some("it reached a limit of processor time: `ulimit -t` shows the shell's"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_on_the_virtual_gpu_is_not_blamed_on_the_script() {
        for &signal in CRASHES {
            assert!(hint(signal, true).unwrap().contains("memfit's fault"), "{}", signal_name(signal));
            assert!(!hint(signal, false).unwrap().contains("memfit"), "{}", signal_name(signal));
        }
    }

    #[test]
    fn a_signal_that_somebody_sent_is_no_crash() {
        for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGXCPU, libc::SIGHUP, libc::SIGUSR1] {
            assert!(!is_crash(signal));
            assert_eq!(hint(signal, true), hint(signal, false));
        }
        assert!(hint(libc::SIGKILL, true).unwrap().contains("memory of the host"));
    }
}
