//! Trust material: operator, account and user JWTs and creds files.
