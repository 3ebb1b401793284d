//! Stories.
fn main() {}
