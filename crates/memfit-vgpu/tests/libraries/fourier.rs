//! cuFFT.

use crate::calls::*;
use crate::machine::{CAPACITY, alone, ledger};

const INVALID_PLAN: i32 = 1;
const ALLOC_FAILED: i32 = 2;
const INVALID_TYPE: i32 = 3;
const INVALID_SIZE: i32 = 8;
const COMPLEX: i32 = 0x29;

#[test]
fn a_plan_brings_its_area_unless_the_caller_does() {
    let _cards = alone();
    let mut plan = 0;
    assert_eq!(cufftCreate(&mut plan), 0);
    let before = ledger().cards[0].used;
    let mut work = 0;
    assert_eq!(cufftMakePlan1d(plan, 1 << 20, COMPLEX, 4, &mut work), 0);
    assert_eq!(work, (1 << 20) * 4 * 8);
    assert_eq!(ledger().cards[0].used - before, work as u64);
    assert_eq!(cufftSetWorkArea(plan, 0x7000_0000), 0);
    assert_eq!(ledger().cards[0].used, before, "the caller's area takes its place");
    let mut size = 0;
    assert_eq!(cufftGetSize(plan, &mut size), 0);
    assert_eq!(size, work);
    assert_eq!(cufftDestroy(plan), 0);
    assert_eq!(cufftDestroy(plan), INVALID_PLAN);

    assert_eq!(cufftCreate(&mut plan), 0);
    assert_eq!(cufftSetAutoAllocation(plan, 0), 0);
    assert_eq!(cufftMakePlan1d(plan, 1 << 20, COMPLEX, 4, &mut work), 0);
    assert_eq!(ledger().cards[0].used, before);
    assert_eq!(cufftDestroy(plan), 0);
}

#[test]
fn a_plan_that_cannot_be_is_refused() {
    let _cards = alone();
    let (mut plan, mut work) = (0, 0);
    assert_eq!(cufftCreate(&mut plan), 0);
    assert_eq!(cufftMakePlan1d(plan, 0, COMPLEX, 1, &mut work), INVALID_SIZE);
    assert_eq!(cufftMakePlan1d(plan, 8, 1, 1, &mut work), INVALID_TYPE);
    let batch = (CAPACITY / 8 / (1 << 20)) as i32;
    assert_eq!(
        cufftMakePlan1d(plan, 1 << 20, COMPLEX, batch, &mut work),
        ALLOC_FAILED,
        "as large as the card"
    );
    assert_eq!(cufftDestroy(plan), 0);
    let before = ledger().cards[0].used;
    let mut other = 0;
    assert_eq!(cufftPlan2d(&mut other, 1 << 16, 1 << 16, COMPLEX), ALLOC_FAILED);
    assert_eq!(cufftDestroy(other), INVALID_PLAN, "nothing of it is left");
    assert_eq!(ledger().cards[0].used, before);
}
