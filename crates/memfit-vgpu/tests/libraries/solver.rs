//! cuSOLVER.

use crate::calls::*;
use crate::machine::enter;

#[test]
fn workspaces_hold_what_the_algorithm_must() {
    enter();
    let handle = create_handle(|handle| cusolverDnCreate(handle));
    let mut size = 0;
    assert_eq!(cusolverDnSgetrf_bufferSize(handle, 1000, 500, 0, 1000, &mut size), 0);
    assert!((1000..1000 * 500).contains(&size), "a panel, and no copy: {size}");
    assert_eq!(cusolverDnSsyevd_bufferSize(handle, 1, 0, 1000, 0, 1000, 0, &mut size), 0);
    assert!(size >= 1 + 6 * 1000 + 2 * 1000 * 1000, "what LAPACK documents: {size}");
    assert_eq!(cusolverDnSsyevd_bufferSize(handle, 1, 0, 1_000_000, 0, 1_000_000, 0, &mut size), 0);
    assert_eq!(size, i32::MAX, "no size overflows");
    let (mut single, mut double, mut host) = (0, 0, 1);
    assert_eq!(cusolverDnXpotrf_bufferSize(handle, 0, 0, 256, 0, 0, 256, 0, &mut single, &mut host), 0);
    assert_eq!(cusolverDnXpotrf_bufferSize(handle, 0, 0, 256, 1, 0, 256, 1, &mut double, &mut host), 0);
    assert_eq!((double, host), (2 * single, 0), "bytes, by the type");
    for (m, n, lda) in [(-1, 5, 5), (5, -1, 5), (5, 5, 4)] {
        assert_eq!(cusolverDnSgetrf_bufferSize(handle, m, n, 0, lda, &mut size), 3, "{m} {n} {lda}");
    }
    assert_eq!(cusolverDnDestroy(handle), 0);
    assert_eq!(cusolverDnSgetrf_bufferSize(0, 5, 5, 0, 5, &mut size), 1);
}
