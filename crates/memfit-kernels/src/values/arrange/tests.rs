//! Tests of kernels that arrange values: names that are recognised, and the sizes of stand-in types.

use super::*;

#[test]
fn names_are_recognised() {
    let sort = |name: &str| {
        format!(
            "_ZN2at6native20{name}lNS0_4GTOpIlLb1EEEjEEvNS_4cuda6detail10TensorInfoIT3_T6_EES8_S8_S8_NS6_IT4_S8_EES8_T5_"
        )
    };
    let mangled = sort("bitonicSortKVInPlaceILin2ELin1ELi16ELi16El");
    let signature = Signature::demangle(&mangled).unwrap();
    let expected = Arrange::Sort { key: Type::I64, value: Type::I64, descending: Some(true) };
    assert_eq!(Arrange::from_signature(&signature), Some(expected));
}

#[test]
fn placeholders_report_their_size() {
    assert_eq!(element_size("at::native::OpaqueType<(unsigned int)8>"), Some(8));
    assert_eq!(element_size("at::native::OpaqueType<2>"), Some(2));
    assert_eq!(element_size("float"), Some(4));
    assert_eq!(element_size("at::native::OpaqueType<99>"), None);
    assert_eq!(element_size("c10::complex<float>"), None);
}
