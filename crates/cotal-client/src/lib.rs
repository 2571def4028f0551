//! The endpoint that agents and integrators use on a Cotal space.
