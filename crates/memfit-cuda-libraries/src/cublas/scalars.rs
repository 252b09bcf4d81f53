//! Calls whose result is one value. Where scalars are on the host, it is written, as zero; where they are on
//! the device, the result's address is the device's, and is not followed.

use super::{Context, status};
use crate::entry::{Handle, Out, Ptr, entry_points};

/// Two numbers, as `cuComplex` is.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Complex<T>(T, T);

/// Writes a result of the host's.
fn settle<T>(handle: Handle<Context>, result: Out<T>, value: T) -> i32 {
    match handle.get() {
        None => status::NOT_INITIALIZED,
        Some(_) if result.is_null() => status::INVALID_VALUE,
        Some(context) if context.scalars_on_host() => {
            result.put(value);
            status::SUCCESS
        }
        Some(_) => status::SUCCESS,
    }
}

/// Writes a result whose type a `cudaDataType` tells.
fn settle_typed(handle: Handle<Context>, result: Ptr, kind: i32) -> i32 {
    /// Writes a result of this type.
    fn typed<T: Default>(handle: Handle<Context>, result: Ptr) -> i32 {
        // SAFETY: the caller's own `cudaDataType` says that a `T` has room there.
        settle(handle, unsafe { Out::from_address(result as u64) }, T::default())
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

/// Declares reductions of one vector: `INDEX => RESULT: names…`.
macro_rules! of_one {
    ($($index:ty => $result:ty: $($name:ident),+;)*) => { $( $(
        entry_points! {
            fail status::INTERNAL_ERROR;
            /// A number of a vector.
            fn $name(handle: Handle<Context>, _n: $index, _x: Ptr, _step: $index, result: Out<$result>) {
                settle(handle, result, <$result>::default())
            }
        }
    )+ )* };
}

of_one! {
    i32 => f32: cublasSnrm2_v2, cublasScnrm2_v2, cublasSasum_v2, cublasScasum_v2;
    i32 => f64: cublasDnrm2_v2, cublasDznrm2_v2, cublasDasum_v2, cublasDzasum_v2;
    i64 => f32: cublasSnrm2_v2_64, cublasScnrm2_v2_64, cublasSasum_v2_64, cublasScasum_v2_64;
    i64 => f64: cublasDnrm2_v2_64, cublasDznrm2_v2_64, cublasDasum_v2_64, cublasDzasum_v2_64;
    i32 => i32: cublasIsamax_v2, cublasIdamax_v2, cublasIcamax_v2, cublasIzamax_v2,
                cublasIsamin_v2, cublasIdamin_v2, cublasIcamin_v2, cublasIzamin_v2;
    i64 => i64: cublasIsamax_v2_64, cublasIdamax_v2_64, cublasIcamax_v2_64, cublasIzamax_v2_64,
                cublasIsamin_v2_64, cublasIdamin_v2_64, cublasIcamin_v2_64, cublasIzamin_v2_64;
}

/// Declares products of two vectors: `INDEX => RESULT: names…`.
macro_rules! of_two {
    ($($index:ty => $result:ty: $($name:ident),+;)*) => { $( $(
        entry_points! {
            fail status::INTERNAL_ERROR;
            /// The product of two vectors.
            fn $name(
                handle: Handle<Context>, _n: $index, _x: Ptr, _x_step: $index, _y: Ptr, _y_step: $index,
                result: Out<$result>,
            ) {
                settle(handle, result, <$result>::default())
            }
        }
    )+ )* };
}

of_two! {
    i32 => f32: cublasSdot_v2;
    i32 => f64: cublasDdot_v2;
    i32 => Complex<f32>: cublasCdotu_v2, cublasCdotc_v2;
    i32 => Complex<f64>: cublasZdotu_v2, cublasZdotc_v2;
    i64 => f32: cublasSdot_v2_64;
    i64 => f64: cublasDdot_v2_64;
    i64 => Complex<f32>: cublasCdotu_v2_64, cublasCdotc_v2_64;
    i64 => Complex<f64>: cublasZdotu_v2_64, cublasZdotc_v2_64;
}

/// Declares the same with free types: one vector, its largest or smallest element, and two vectors.
macro_rules! typed {
    ($index:ty: [$($one:ident),+] [$($position:ident),+] [$($two:ident),+]) => {
        entry_points! {
            fail status::INTERNAL_ERROR;
            $(
                /// A number of a vector.
                fn $one(
                    handle: Handle<Context>, _n: $index, _x: Ptr, _x_kind: i32, _step: $index, result: Ptr, kind: i32,
                    _execution: i32,
                ) {
                    settle_typed(handle, result, kind)
                }
            )+
            $(
                /// The place of an element.
                fn $position(
                    handle: Handle<Context>, _n: $index, _x: Ptr, _x_kind: i32, _step: $index, result: Out<$index>,
                ) {
                    settle(handle, result, 0)
                }
            )+
            $(
                /// The product of two vectors.
                fn $two(
                    handle: Handle<Context>, _n: $index, _x: Ptr, _x_kind: i32, _x_step: $index, _y: Ptr, _y_kind: i32,
                    _y_step: $index, result: Ptr, kind: i32, _execution: i32,
                ) {
                    settle_typed(handle, result, kind)
                }
            )+
        }
    };
}

typed!(i32: [cublasNrm2Ex, cublasAsumEx] [cublasIamaxEx, cublasIaminEx] [cublasDotEx, cublasDotcEx]);
typed!(i64: [cublasNrm2Ex_64, cublasAsumEx_64] [cublasIamaxEx_64, cublasIaminEx_64] [cublasDotEx_64, cublasDotcEx_64]);

/// Declares the rotations: the one that turns nothing, cosine 1 and sine 0.
macro_rules! rotations {
    ($($real:ty, $number:ty: $rotation:ident;)*) => { $(
        entry_points! {
            fail status::INTERNAL_ERROR;
            /// A rotation of the plane.
            fn $rotation(handle: Handle<Context>, _a: Ptr, _b: Ptr, cosine: Out<$real>, sine: Out<$number>) {
                match settle(handle, sine, <$number>::default()) {
                    status::SUCCESS => settle(handle, cosine, 1.0),
                    failure => failure,
                }
            }
        }
    )* };
}

rotations! {
    f32, f32: cublasSrotg_v2;
    f64, f64: cublasDrotg_v2;
    f32, Complex<f32>: cublasCrotg_v2;
    f64, Complex<f64>: cublasZrotg_v2;
}

entry_points! {
    fail status::INTERNAL_ERROR;

    /// A modified rotation: the flag −2 says that it turns nothing.
    fn cublasSrotmg_v2(handle: Handle<Context>, _d1: Ptr, _d2: Ptr, _x1: Ptr, _y1: Ptr, parameters: Out<[f32; 5]>) {
        settle(handle, parameters, [-2.0, 0.0, 0.0, 0.0, 0.0])
    }

    /// As above, in double precision.
    fn cublasDrotmg_v2(handle: Handle<Context>, _d1: Ptr, _d2: Ptr, _x1: Ptr, _y1: Ptr, parameters: Out<[f64; 5]>) {
        settle(handle, parameters, [-2.0, 0.0, 0.0, 0.0, 0.0])
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
        // SAFETY: it is the address of a number of that type.
        let place = unsafe { Out::from_address(&raw mut result as u64) };
        assert_eq!(cublasSdot_v2(handle, 3, vector, 1, vector, 1, place), status::SUCCESS);
        assert_eq!(result.to_bits(), 0);
        super::super::cublasSetPointerMode_v2(handle, 1);
        // SAFETY: a scalar on the device is not followed.
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
