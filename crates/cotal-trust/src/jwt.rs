//! The outer form of a NATS JWT: three base64url parts, signed with an nkey.

use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use nkeys::KeyPair;
use serde::Serialize;
use sha2::{Digest, Sha512_256};

use crate::error::MintError;

const HEADER: &str = r#"{"typ":"JWT","alg":"ed25519-nkey"}"#;

/// The claims that every NATS JWT carries around its own `nats` block.
#[derive(Serialize)]
pub(crate) struct Envelope<'a, N> {
    /// The hash of these claims with this field left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) jti: Option<String>,
    /// Issued at, Unix seconds.
    pub(crate) iat: i64,
    /// Public key of the signer.
    pub(crate) iss: String,
    /// A name for people.
    pub(crate) name: &'a str,
    /// Public key of the subject.
    pub(crate) sub: &'a str,
    /// Expires at, Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exp: Option<i64>,
    /// What the kind of JWT is about.
    pub(crate) nats: N,
}

/// Signs claims. The same claims and key give the same text, because ed25519 is deterministic.
pub(crate) fn sign<N: Serialize>(
    mut claims: Envelope<'_, N>,
    signer: &KeyPair,
) -> Result<String, MintError> {
    claims.iss = signer.public_key();
    claims.jti = None;
    claims.jti = Some(BASE32_NOPAD.encode(&Sha512_256::digest(serde_json::to_vec(&claims)?)));
    let body = BASE64URL_NOPAD.encode(&serde_json::to_vec(&claims)?);
    let mut jwt = format!("{}.{body}", BASE64URL_NOPAD.encode(HEADER.as_bytes()));
    let signature = signer.sign(jwt.as_bytes())?;
    jwt.push('.');
    BASE64URL_NOPAD.encode_append(&signature, &mut jwt);
    Ok(jwt)
}
