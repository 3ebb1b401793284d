//! Laws of leases.
