//! Dense operands: the address of their values, so that contents overwritten on the device are forgotten.

use super::status;
use crate::entry::Ptr;
use crate::real::real;
use memfit_cuda::card;

/// Forgets the contents of a dense matrix that work on the device may have written.
pub(crate) fn forget_dense_matrix(descriptor: u64) {
    let mut values = std::ptr::null_mut();
    forget_values(valid_values(
        real!(CUSPARSE, cusparseDnMatGetValues(descriptor as Ptr => Ptr, &raw mut values => *mut Ptr) -> i32),
        &values,
    ));
}

/// Forgets the contents of a dense vector that work on the device may have written.
pub(crate) fn forget_dense_vector(descriptor: u64) {
    let mut values = std::ptr::null_mut();
    forget_values(valid_values(
        real!(CUSPARSE, cusparseDnVecGetValues(descriptor as Ptr => Ptr, &raw mut values => *mut Ptr) -> i32),
        &values,
    ));
}

fn valid_values(result: Option<i32>, values: &Ptr) -> Option<Ptr> {
    (result == Some(status::SUCCESS)).then_some(*values)
}

fn forget_values(values: Option<Ptr>) {
    values.into_iter().for_each(card::forget_contents);
}
