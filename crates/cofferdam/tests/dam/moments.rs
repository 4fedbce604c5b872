//! Bad moments.
