//! Tests of the public interface.

mod eval;
