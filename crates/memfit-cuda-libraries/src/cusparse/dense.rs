//! Dense operands: where their numbers are, so that what work on the device overwrites is known no more.

use super::status;
use crate::entry::Ptr;
use crate::real::real;
use memfit_cuda::card;

/// Work on the device may have written a dense matrix.
pub(crate) fn dense_matrix(descriptor: u64) {
    let mut values = std::ptr::null_mut();
    overwritten(values_of(
        real!(CUSPARSE, cusparseDnMatGetValues(descriptor as Ptr => Ptr, &raw mut values => *mut Ptr) -> i32),
        &values,
    ));
}

/// Work on the device may have written a dense vector.
pub(crate) fn dense_vector(descriptor: u64) {
    let mut values = std::ptr::null_mut();
    overwritten(values_of(
        real!(CUSPARSE, cusparseDnVecGetValues(descriptor as Ptr => Ptr, &raw mut values => *mut Ptr) -> i32),
        &values,
    ));
}

fn values_of(result: Option<i32>, values: &Ptr) -> Option<Ptr> {
    (result == Some(status::SUCCESS)).then_some(*values)
}

fn overwritten(values: Option<Ptr>) {
    values.into_iter().for_each(card::forget_contents);
}
