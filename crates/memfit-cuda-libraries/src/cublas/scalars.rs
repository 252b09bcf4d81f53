//! Calls whose result is one value. In host pointer mode, it is written as zero. In device pointer mode, the
//! result's address is a device address and is not dereferenced.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

use super::{Context, status};
use crate::entry::{Fails, Handle, Out, Ptr, entry_points};

/// Two numbers, laid out as `cuComplex`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Complex<T>(T, T);

/// Writes a result in host memory.
fn write_scalar<T>(handle: Handle<Context>, result: Out<T>, value: T) -> i32 {
    match handle.get() {
        None => status::NOT_INITIALIZED,
        Some(_) if result.is_null() => status::INVALID_VALUE,
        Some(context) if context.scalars_on_host() => {
            result.set(value);
            status::SUCCESS
        }
        Some(_) => status::SUCCESS,
    }
}

/// Writes a result of the type that a `cudaDataType` denotes.
fn write_typed_scalar(handle: Handle<Context>, result: Ptr, kind: i32) -> i32 {
    /// Writes a result of type `T`.
    fn typed<T: Default>(handle: Handle<Context>, result: Ptr) -> i32 {
        // SAFETY: the caller's own `cudaDataType` says that a `T` fits there.
        write_scalar(handle, unsafe { Out::from_address(result as u64) }, T::default())
    }
    match kind {
        0 => typed::<f32>(handle, result),
        1 => typed::<f64>(handle, result),
        2 | 14 => typed::<u16>(handle, result),
        4 => typed::<Complex<f32>>(handle, result),
        5 => typed::<Complex<f64>>(handle, result),
        _ => status::NOT_SUPPORTED,
    }
}

/// Writes the identity rotation.
fn write_rotation<R, N: Default>(handle: Handle<Context>, cosine: Out<R>, one: R, sine: Out<N>) -> i32 {
    match write_scalar(handle, sine, N::default()) {
        status::SUCCESS => write_scalar(handle, cosine, one),
        failure => failure,
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Reduces a vector to a number.
    fn cublasSnrm2_v2(handle: Handle<Context>, _n: i32, _x: Ptr, _step: i32, result: Out<f32>),
    fn cublasScnrm2_v2(),
    fn cublasSasum_v2(),
    fn cublasScasum_v2() {
        write_scalar(handle, result, <f32>::default())
    }

    /// Reduces a vector to a number.
    fn cublasDnrm2_v2(handle: Handle<Context>, _n: i32, _x: Ptr, _step: i32, result: Out<f64>),
    fn cublasDznrm2_v2(),
    fn cublasDasum_v2(),
    fn cublasDzasum_v2() {
        write_scalar(handle, result, <f64>::default())
    }

    /// Reduces a vector to a number.
    fn cublasSnrm2_v2_64(handle: Handle<Context>, _n: i64, _x: Ptr, _step: i64, result: Out<f32>),
    fn cublasScnrm2_v2_64(),
    fn cublasSasum_v2_64(),
    fn cublasScasum_v2_64() {
        write_scalar(handle, result, <f32>::default())
    }

    /// Reduces a vector to a number.
    fn cublasDnrm2_v2_64(handle: Handle<Context>, _n: i64, _x: Ptr, _step: i64, result: Out<f64>),
    fn cublasDznrm2_v2_64(),
    fn cublasDasum_v2_64(),
    fn cublasDzasum_v2_64() {
        write_scalar(handle, result, <f64>::default())
    }

    /// Reduces a vector to a number.
    fn cublasIsamax_v2(handle: Handle<Context>, _n: i32, _x: Ptr, _step: i32, result: Out<i32>),
    fn cublasIdamax_v2(),
    fn cublasIcamax_v2(),
    fn cublasIzamax_v2(),
    fn cublasIsamin_v2(),
    fn cublasIdamin_v2(),
    fn cublasIcamin_v2(),
    fn cublasIzamin_v2() {
        write_scalar(handle, result, <i32>::default())
    }

    /// Reduces a vector to a number.
    fn cublasIsamax_v2_64(handle: Handle<Context>, _n: i64, _x: Ptr, _step: i64, result: Out<i64>),
    fn cublasIdamax_v2_64(),
    fn cublasIcamax_v2_64(),
    fn cublasIzamax_v2_64(),
    fn cublasIsamin_v2_64(),
    fn cublasIdamin_v2_64(),
    fn cublasIcamin_v2_64(),
    fn cublasIzamin_v2_64() {
        write_scalar(handle, result, <i64>::default())
    }

    /// Multiplies two vectors.
    fn cublasSdot_v2(
        handle: Handle<Context>, _n: i32, _x: Ptr, _x_step: i32, _y: Ptr, _y_step: i32, result: Out<f32>,
    ) {
        write_scalar(handle, result, <f32>::default())
    }

    /// Multiplies two vectors.
    fn cublasDdot_v2(
        handle: Handle<Context>, _n: i32, _x: Ptr, _x_step: i32, _y: Ptr, _y_step: i32, result: Out<f64>,
    ) {
        write_scalar(handle, result, <f64>::default())
    }

    /// Multiplies two vectors.
    fn cublasCdotu_v2(
        handle: Handle<Context>, _n: i32, _x: Ptr, _x_step: i32, _y: Ptr, _y_step: i32, result: Out<Complex<f32>>,
    ),
    fn cublasCdotc_v2() {
        write_scalar(handle, result, <Complex<f32>>::default())
    }

    /// Multiplies two vectors.
    fn cublasZdotu_v2(
        handle: Handle<Context>, _n: i32, _x: Ptr, _x_step: i32, _y: Ptr, _y_step: i32, result: Out<Complex<f64>>,
    ),
    fn cublasZdotc_v2() {
        write_scalar(handle, result, <Complex<f64>>::default())
    }

    /// Multiplies two vectors.
    fn cublasSdot_v2_64(
        handle: Handle<Context>, _n: i64, _x: Ptr, _x_step: i64, _y: Ptr, _y_step: i64, result: Out<f32>,
    ) {
        write_scalar(handle, result, <f32>::default())
    }

    /// Multiplies two vectors.
    fn cublasDdot_v2_64(
        handle: Handle<Context>, _n: i64, _x: Ptr, _x_step: i64, _y: Ptr, _y_step: i64, result: Out<f64>,
    ) {
        write_scalar(handle, result, <f64>::default())
    }

    /// Multiplies two vectors.
    fn cublasCdotu_v2_64(
        handle: Handle<Context>, _n: i64, _x: Ptr, _x_step: i64, _y: Ptr, _y_step: i64, result: Out<Complex<f32>>,
    ),
    fn cublasCdotc_v2_64() {
        write_scalar(handle, result, <Complex<f32>>::default())
    }

    /// Multiplies two vectors.
    fn cublasZdotu_v2_64(
        handle: Handle<Context>, _n: i64, _x: Ptr, _x_step: i64, _y: Ptr, _y_step: i64, result: Out<Complex<f64>>,
    ),
    fn cublasZdotc_v2_64() {
        write_scalar(handle, result, <Complex<f64>>::default())
    }

    /// Reduces a vector to a number of a type given as an argument.
    fn cublasNrm2Ex(
        handle: Handle<Context>, _n: i32, _x: Ptr, _x_kind: i32, _step: i32, result: Ptr, kind: i32, _execution: i32,
    ),
    fn cublasAsumEx() {
        write_typed_scalar(handle, result, kind)
    }

    /// Returns the index of an element.
    fn cublasIamaxEx(handle: Handle<Context>, _n: i32, _x: Ptr, _x_kind: i32, _step: i32, result: Out<i32>),
    fn cublasIaminEx() {
        write_scalar(handle, result, 0)
    }

    /// Multiplies two vectors of types given as arguments.
    fn cublasDotEx(
        handle: Handle<Context>, _n: i32, _x: Ptr, _x_kind: i32, _x_step: i32, _y: Ptr, _y_kind: i32, _y_step: i32,
        result: Ptr, kind: i32, _execution: i32,
    ),
    fn cublasDotcEx() {
        write_typed_scalar(handle, result, kind)
    }

    /// Reduces a vector to a number of a type given as an argument.
    fn cublasNrm2Ex_64(
        handle: Handle<Context>, _n: i64, _x: Ptr, _x_kind: i32, _step: i64, result: Ptr, kind: i32, _execution: i32,
    ),
    fn cublasAsumEx_64() {
        write_typed_scalar(handle, result, kind)
    }

    /// Returns the index of an element.
    fn cublasIamaxEx_64(handle: Handle<Context>, _n: i64, _x: Ptr, _x_kind: i32, _step: i64, result: Out<i64>),
    fn cublasIaminEx_64() {
        write_scalar(handle, result, 0)
    }

    /// Multiplies two vectors of types given as arguments.
    fn cublasDotEx_64(
        handle: Handle<Context>, _n: i64, _x: Ptr, _x_kind: i32, _x_step: i64, _y: Ptr, _y_kind: i32, _y_step: i64,
        result: Ptr, kind: i32, _execution: i32,
    ),
    fn cublasDotcEx_64() {
        write_typed_scalar(handle, result, kind)
    }

    /// Returns the identity rotation: cosine 1 and sine 0.
    fn cublasSrotg_v2(handle: Handle<Context>, _a: Ptr, _b: Ptr, cosine: Out<f32>, sine: Out<f32>) {
        write_rotation(handle, cosine, 1.0, sine)
    }

    /// Returns the identity rotation: cosine 1 and sine 0.
    fn cublasDrotg_v2(handle: Handle<Context>, _a: Ptr, _b: Ptr, cosine: Out<f64>, sine: Out<f64>) {
        write_rotation(handle, cosine, 1.0, sine)
    }

    /// Returns the identity rotation: cosine 1 and sine 0.
    fn cublasCrotg_v2(handle: Handle<Context>, _a: Ptr, _b: Ptr, cosine: Out<f32>, sine: Out<Complex<f32>>) {
        write_rotation(handle, cosine, 1.0, sine)
    }

    /// Returns the identity rotation: cosine 1 and sine 0.
    fn cublasZrotg_v2(handle: Handle<Context>, _a: Ptr, _b: Ptr, cosine: Out<f64>, sine: Out<Complex<f64>>) {
        write_rotation(handle, cosine, 1.0, sine)
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Returns a modified rotation; the flag −2 marks the identity.
    fn cublasSrotmg_v2(handle: Handle<Context>, _d1: Ptr, _d2: Ptr, _x1: Ptr, _y1: Ptr, parameters: Out<[f32; 5]>) {
        write_scalar(handle, parameters, [-2.0, 0.0, 0.0, 0.0, 0.0])
    }

    /// Does the same in double precision.
    fn cublasDrotmg_v2(handle: Handle<Context>, _d1: Ptr, _d2: Ptr, _x1: Ptr, _y1: Ptr, parameters: Out<[f64; 5]>) {
        write_scalar(handle, parameters, [-2.0, 0.0, 0.0, 0.0, 0.0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_on_the_host_is_written_and_one_on_the_device_is_not_followed() {
        let handle = Handle::new(Context::default());
        let mut result = 7_f32;
        let vector = std::ptr::null_mut();
        // SAFETY: the address is that of a number of this type.
        let place = unsafe { Out::from_address(&raw mut result as u64) };
        assert_eq!(cublasSdot_v2(handle, 3, vector, 1, vector, 1, place), status::SUCCESS);
        assert_eq!(result.to_bits(), 0);
        super::super::cublasSetPointerMode_v2(handle, 1);
        // SAFETY: a scalar on the device is not dereferenced.
        let on_the_device = unsafe { Out::<f32>::from_address(0x7f00_0000_0000) };
        assert_eq!(cublasSdot_v2(handle, 3, vector, 1, vector, 1, on_the_device), status::SUCCESS);
        assert_eq!(cublasSnrm2_v2(handle, 3, vector, 1, Out::nowhere()), status::INVALID_VALUE);
        assert!(handle.destroy());
        assert_eq!(cublasSnrm2_v2(Handle::null(), 3, vector, 1, Out::nowhere()), status::NOT_INITIALIZED);
    }

    #[test]
    fn a_typed_result_is_as_wide_as_its_type() {
        let handle = Handle::new(Context::default());
        let mut bytes = [0xff_u8; 24];
        for (kind, width) in [(0, 4), (1, 8), (2, 2), (14, 2), (4, 8), (5, 16)] {
            bytes.fill(0xff);
            let place = bytes.as_mut_ptr().cast();
            assert_eq!(cublasNrm2Ex(handle, 3, place, kind, 1, place, kind, 0), status::SUCCESS);
            assert_eq!(bytes.iter().position(|byte| *byte == 0xff), Some(width), "type {kind}");
        }
        let place = bytes.as_mut_ptr().cast();
        assert_eq!(cublasNrm2Ex(handle, 3, place, 3, 1, place, 3, 0), status::NOT_SUPPORTED);
        assert!(handle.destroy());
    }
}
