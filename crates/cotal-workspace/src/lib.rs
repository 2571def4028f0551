//! The files of a workspace root: secrets, records, registry, manifest.
