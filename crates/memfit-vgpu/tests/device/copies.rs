//! Tests of copies: directions that fit each kind of memory, and ranges that are refused.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use crate::{
    cuda::*,
    machine::{MIB, enter},
};

#[test]
fn a_direction_must_fit_what_the_addresses_are() {
    enter();
    let device = malloc(MIB);
    let pinned = out(|address| cudaHostAlloc(address, MIB, 0));
    let own = vec![0u8; 4096];
    let host = own.as_ptr() as u64;
    let (host_to_host, bad) = (0, INVALID_VALUE);
    for (target, source, kind, expected) in [
        (device, host, HOST_TO_DEVICE, 0),
        (host, device, DEVICE_TO_HOST, 0),
        (device, device + 4096, DEVICE_TO_DEVICE, 0),
        (host, pinned, host_to_host, 0),
        (device, pinned, HOST_TO_DEVICE, 0),
        (device, pinned, DEVICE_TO_DEVICE, 0), // the card can reach it
        (device, host, DEFAULT, 0),
        (host, device, DEFAULT, 0),
        (host, pinned, DEFAULT, 0),
        (host, device, HOST_TO_DEVICE, bad),
        (device, host, DEVICE_TO_HOST, bad),
        (device, device + 4096, HOST_TO_DEVICE, bad),
        (host, device, host_to_host, bad),
        (device, host, 5, INVALID_COPY_DIRECTION),
        (device, host, -1, INVALID_COPY_DIRECTION),
        (0, device, DEFAULT, bad),
        (device, 0, DEFAULT, bad),
    ] {
        assert_eq!(cudaMemcpy(target, source, 4096, kind), expected, "{target:#x} {source:#x} {kind}");
    }
    assert_eq!(cudaMemcpy(device, host, 0, HOST_TO_DEVICE), 0);
    assert_eq!(cudaFree(device), 0);
    assert_eq!(cudaFreeHost(pinned), 0);
    cudaGetLastError();
}

#[test]
fn a_range_beyond_its_block_is_refused() {
    enter();
    let device = malloc(3 * MIB);
    let own = vec![0u8; 4 << 20];
    let host = own.as_ptr() as u64;
    assert_eq!(cudaMemcpy(device, host, 3 * MIB, DEFAULT), 0);
    assert_eq!(cudaMemcpy(device, host, 3 * MIB + 1, DEFAULT), INVALID_VALUE);
    assert_eq!(cudaMemcpy(device + MIB, host, 2 * MIB + 1, DEFAULT), INVALID_VALUE);
    assert_eq!(cudaMemcpy(host, device + 1, 3 * MIB, DEFAULT), INVALID_VALUE);
    assert_eq!(cudaMemset(device, 0, 3 * MIB + 1), INVALID_VALUE);
    assert_eq!(cudaMemset(device, 0, u64::MAX), INVALID_VALUE);
    assert_eq!(cuMemsetD32_v2(device, 0, 3 * MIB / 4 + 1), INVALID_VALUE);
    assert_eq!(cuMemsetD32_v2(device, 0, u64::MAX / 2), INVALID_VALUE);
    assert_eq!(cudaMemset(host, 0, 10), INVALID_VALUE, "the program's own memory");
    assert_eq!(cudaFree(device), 0);
    for kind in [HOST_TO_DEVICE, DEFAULT] {
        assert_eq!(cudaMemcpy(device, host, 16, kind), INVALID_VALUE, "freed, kind {kind}");
    }
    assert_eq!(cudaMemcpy(host, device, 16, DEFAULT), INVALID_VALUE, "freed");
    cudaGetLastError();
}

#[test]
fn uploaded_bytes_are_downloaded_unchanged() {
    enter();
    let device = malloc(MIB);
    let sent: Vec<u8> = (0..=255).collect();
    let mut received = vec![1u8; 256];
    assert_eq!(cuMemcpyHtoD_v2(device + 512, sent.as_ptr() as u64, 256), 0);
    assert_eq!(cuMemcpyDtoH_v2(received.as_mut_ptr() as u64, device + 512, 256), 0);
    assert_eq!(received, sent);
    assert_eq!(cudaMemset(device + 512, 5, 10), 0);
    assert_eq!(cudaMemcpy(received.as_mut_ptr() as u64, device + 512, 12, DEVICE_TO_HOST), 0);
    assert_eq!(received[..12], [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 10, 11]);
    assert_eq!(cudaFree(device), 0);
}

#[test]
fn rows_are_copied_to_their_own_pitch() {
    enter();
    let device = malloc(MIB);
    let sent: Vec<u8> = (0..30).collect();
    let mut received = vec![0xffu8; 40];
    assert_eq!(cudaMemcpy2D(device, 512, sent.as_ptr() as u64, 10, 8, 3, HOST_TO_DEVICE), 0);
    assert_eq!(cudaMemcpy2D(received.as_mut_ptr() as u64, 12, device, 512, 8, 3, DEVICE_TO_HOST), 0);
    assert_eq!(received[..8], sent[..8]);
    assert_eq!(received[8..12], [0xff; 4], "between the rows nothing is written");
    assert_eq!(received[24..32], sent[20..28]);
    assert_eq!(
        cudaMemcpy2D(device, 4, sent.as_ptr() as u64, 10, 8, 3, HOST_TO_DEVICE),
        12,
        "wider than the pitch"
    );
    assert_eq!(cudaFree(device), 0);
    cudaGetLastError();
}

#[test]
fn reading_back_much_leaves_untouched_pages_alone() {
    enter();
    const SIZE: u64 = 512 * MIB;
    let device = malloc(SIZE);
    // SAFETY: a fresh mapping of this test's own.
    let host = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            SIZE as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    // A page that was used must still be overwritten.
    // SAFETY: within the mapping above.
    unsafe { host.cast::<u8>().add(5 << 20).write(9) };
    assert_eq!(cudaMemcpy(host as u64, device, SIZE, DEVICE_TO_HOST), 0);
    // SAFETY: within the mapping above.
    assert_eq!(unsafe { host.cast::<u8>().add(5 << 20).read() }, 0);
    let mut resident = 0;
    for line in std::fs::read_to_string("/proc/self/smaps")
        .unwrap()
        .lines()
        .skip_while(|line| !line.starts_with(&format!("{:x}-", host as u64)))
    {
        if let Some(rest) = line.strip_prefix("Rss:") {
            resident = rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            break;
        }
    }
    assert!(resident < 64 << 10, "{resident} KiB became resident");
    // SAFETY: the mapping above.
    unsafe { libc::munmap(host, SIZE as usize) };
    assert_eq!(cudaFree(device), 0);
}

#[test]
fn a_copy_on_a_dead_stream_is_refused() {
    enter();
    let stream = out(cudaStreamCreate);
    let device = malloc(MIB);
    assert_eq!(cudaMemcpyAsync(device, device + 4096, 16, DEVICE_TO_DEVICE, stream), 0);
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaMemcpyAsync(device, device + 4096, 16, DEVICE_TO_DEVICE, stream), INVALID_HANDLE);
    assert_eq!(cudaFree(device), 0);
    cudaGetLastError();
}
