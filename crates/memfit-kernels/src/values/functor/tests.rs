//! Tests of functors on synthetic arguments.

use super::*;

/// Fields of a functor, as consecutive 32-bit words.
fn words(words: &[u32]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(32, 0);
    bytes
}

fn int(value: i64) -> Value {
    Value::Int(value)
}

fn real(value: f64) -> Value {
    Value::Real(value)
}

/// Fields are laid out as PyTorch 2.9, 2.11 and 2.15 pass them to kernels.
#[test]
fn functors_compute_what_their_names_say() {
    let one = 1.0_f32.to_bits();
    let half = 0x3c00_u32;
    for (name, fields, inputs, expected) in [
        ("at::native::FillFunctor<long>", vec![7, 0], vec![], int(7)),
        ("at::native::FillFunctor<c10::Half>", vec![half], vec![], real(1.0)),
        ("at::native::AbsFunctor<float>", vec![], vec![real(-2.0)], real(2.0)),
        ("at::native::CompareFunctor<float>", vec![2], vec![real(1.0), real(1.0)], int(1)),
        ("at::native::CompareFunctor<long>", vec![3], vec![int(1), int(1)], int(0)),
        ("at::native::CompareFunctor<float>", vec![0], vec![real(f64::NAN), real(1.0)], int(0)),
        (
            "at::native::CUDAFunctor_add<float>",
            vec![(-1.0_f32).to_bits()],
            vec![real(5.0), real(3.0)],
            real(2.0),
        ),
        ("at::native::CUDAFunctorOnSelf_add<long>", vec![3, 0, u32::MAX, u32::MAX], vec![int(10)], int(7)),
        ("at::native::CUDAFunctorOnOther_add<long>", vec![3, 0, u32::MAX, u32::MAX], vec![int(10)], int(-7)),
        (
            "at::native::AUnaryFunctor<long, long, bool, at::native::CompareEqFunctor<long> >",
            vec![1, 2, (-100_i32) as u32, u32::MAX],
            vec![int(5)],
            int(1),
        ),
        (
            "at::native::AUnaryFunctor<c10::Half, c10::Half, bool, at::native::CompareEqFunctor<c10::Half> >",
            vec![0, half],
            vec![real(1.0)],
            int(1),
        ),
        (
            "at::native::BUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >",
            vec![0xdead_beef, 0.5_f32.to_bits()],
            vec![real(3.0)],
            real(1.5),
        ),
        (
            "at::native::BinaryFunctor<bool, bool, bool, at::native::BitwiseAndFunctor<bool> >",
            vec![],
            vec![int(1), int(0)],
            int(0),
        ),
        (
            "at::native::BUnaryFunctor<long, long, long, at::native::binary_internal::div_floor_kernel_cuda(\
             at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda(long, long)#1}>",
            vec![9, 9, 2, 0],
            vec![int(-7)],
            int(-4),
        ),
        (
            "void compare_scalar_kernel<float>(T&, OpType, float)::{lambda(float)#1}",
            vec![1, one],
            vec![real(2.0)],
            int(1),
        ),
        (
            "void compare_scalar_kernel<long>(T&, OpType, long)::{lambda(long)#1}",
            vec![0, 9, 7, 0],
            vec![int(6)],
            int(0),
        ),
        (
            "at::native::direct_copy_kernel_cuda(T&)::{lambda()#3}::operator()() const::{lambda(long)#1}",
            vec![],
            vec![int(4)],
            int(4),
        ),
        ("void converting_copy_kernel_cuda<bool, long>(T&)::{lambda(bool)#1}", vec![], vec![int(1)], int(1)),
        ("f::launch_clamp_scalar(T&, S)::{lambda(long)#1}", vec![0, 9, 3, 0, 3, 0], vec![int(1)], int(3)),
        ("f::launch_clamp_scalar(T&, S)::{lambda(long)#1}", vec![1, 9, 3, 0, 3, 0], vec![int(7)], int(3)),
        ("f::launch_clamp_scalar(T&, S)::{lambda(float)#1}", vec![2, 0, one], vec![real(9.0)], real(1.0)),
        (
            "f::masked_fill_kernel(T&, S)::{lambda()#1}::operator()() const::{lambda(long, bool)#1}",
            vec![(-100_i32) as u32, u32::MAX],
            vec![int(3), int(1)],
            int(-100),
        ),
        (
            "f::where_kernel_impl(T&)::{lambda()#1}::operator()() const::{lambda(bool, unsigned int, unsigned int)#1}",
            vec![],
            vec![int(0), int(1), int(2)],
            int(2),
        ),
        (
            "f::logical_not_kernel_cuda(T&)::{lambda()#7}::operator()() const::{lambda(float)#1}",
            vec![],
            vec![real(0.5)],
            int(0),
        ),
        ("f::bitwise_not_kernel_cuda(T&)::{lambda(bool)#1}", vec![], vec![int(1)], int(0)),
        ("f::bitwise_not_kernel_cuda(T&)::{lambda(long)#1}", vec![], vec![int(1)], int(-2)),
    ] {
        let functor = Functor::from_cpp(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(functor.evaluate(&words(&fields), &inputs), Some(expected), "{name}");
    }
}

#[test]
fn unmodelled_functors_still_show_their_types() {
    let name = "at::native::BinaryFunctor<float, float, float, at::native::copysign_kernel_cuda(T&)::{lambda(float, float)#1}>";
    let functor = Functor::from_cpp(name).unwrap();
    assert_eq!((functor.rule, functor.output, functor.inputs.len()), (None, Type::F32, 2));
    assert_eq!(functor.evaluate(&words(&[]), &[real(1.0), real(1.0)]), None);
    assert_eq!(Functor::from_cpp("at::native::AbsFunctor<c10::complex<float> >"), None);
    assert_eq!(Functor::from_cpp("at::native::tanh_kernel_cuda(T&)::{lambda(float)#1}").unwrap().rule, None);
}

#[test]
fn division_by_zero_is_unknown_for_integers_and_infinite_for_reals() {
    let name = "BUnaryFunctor<long, long, long, div_floor_kernel_cuda(T&)::{lambda(long, long)#1}>";
    assert_eq!(Functor::from_cpp(name).unwrap().evaluate(&words(&[0, 0, 0, 0]), &[int(3)]), None);
    let name = "BinaryFunctor<float, float, float, binary_internal::DivFunctor<float> >";
    let quotient = Functor::from_cpp(name).unwrap().evaluate(&words(&[]), &[real(3.0), real(0.0)]);
    assert_eq!(quotient, Some(real(f64::INFINITY)));
}

#[test]
fn unknown_numbers_are_finite_and_equal_themselves() {
    let equal = Functor::from_cpp("BinaryFunctor<float, float, bool, CompareEqFunctor<float> >").unwrap();
    assert_eq!(equal.always(&words(&[0]), true), Some(int(1)), "x == x");
    assert_eq!(equal.always(&words(&[1]), true), Some(int(0)), "x != x");
    assert_eq!(equal.always(&words(&[0]), false), None, "x == y");
    let infinite = Functor::from_cpp("AUnaryFunctor<float, float, bool, CompareEqFunctor<float> >").unwrap();
    let infinity = f32::INFINITY.to_bits();
    assert_eq!(infinite.always(&words(&[1, infinity]), false), Some(int(1)), "x != inf");
    assert_eq!(infinite.always(&words(&[0, infinity]), false), Some(int(0)), "x == inf");
    assert_eq!(infinite.always(&words(&[0, 0]), false), None, "x == 0");
    let order =
        Functor::from_cpp("void compare_scalar_kernel<float>(T&, OpType, float)::{lambda(float)#1}").unwrap();
    assert_eq!(order.always(&words(&[0, 0]), false), Some(int(1)), "x >= 0");
    assert_eq!(order.always(&words(&[1, 0]), false), None, "x > 0");
    assert_eq!(order.always(&words(&[0, 1.0_f32.to_bits()]), false), None, "x >= 1");
    let add = Functor::from_cpp("CUDAFunctor_add<float>").unwrap();
    assert_eq!(add.always(&words(&[0]), true), None);
}
