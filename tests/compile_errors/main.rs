//! Programs that must not compile, beside the compiler's messages. They are a package of their own,
//! so that nobody who runs an example builds what they need.

#[test]
fn the_derive_reports_errors_at_the_field() {
    trybuild::TestCases::new().compile_fail("derive/*.rs");
}

#[test]
fn jit_reports_what_a_function_of_tensors_must_be() {
    trybuild::TestCases::new().compile_fail("jit/*.rs");
}
