//! What an account can tell of a credential without a broker: whether it is one that it signed.

use cotal_wire::creds::{Creds, CredsError};
use cotal_workspace::Secret;
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;

use crate::account::AccountKeys;
use crate::user::UserKey;

/// Why a stored text is no credential of an account.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnfitError {
    /// It cannot be parsed.
    #[error(transparent)]
    Shape(#[from] CredsError),
    /// Something of the JWT is not what was signed.
    #[error("the credential's signature does not fit what it says; a part of it was changed")]
    Signature,
    /// Another account signed it, or it speaks for another one.
    #[error("the credential was signed by {issuer}, which is not this account's key")]
    Foreign {
        /// The signer.
        issuer: String,
    },
    /// Its key cannot prove the identity that the JWT names.
    #[error("the credential's seed is not that of the user its JWT names")]
    Seed,
}

/// Reads a `.creds` file that `account` must have signed, and verifies that it did.
///
/// An account has no signing keys besides its own (see [`AccountKeys`]), so no other is accepted.
///
/// # Errors
/// When the text cannot be parsed, its signature does not verify, another account signed it, or its
/// seed is another user's.
pub fn read_creds(text: &str, account: &AccountKeys) -> Result<Creds, UnfitError> {
    let creds = Creds::parse(text)?;
    let claims = &creds.claims;
    // The signature comes first: a damaged issuer is damage, and no other account.
    verify(&creds.jwt, &claims.issuer)?;
    let own = account.public_key();
    if claims.issuer != own || claims.account != own {
        return Err(UnfitError::Foreign { issuer: claims.issuer.clone() });
    }
    let key = UserKey::from_seed(&Secret::new(&creds.seed)).map_err(|_| UnfitError::Seed)?;
    if key.public_key() != claims.subject.as_str() {
        return Err(UnfitError::Seed);
    }
    Ok(creds)
}

fn verify(jwt: &str, issuer: &str) -> Result<(), UnfitError> {
    let (signed, signature) = jwt.rsplit_once('.').ok_or(UnfitError::Signature)?;
    let signature =
        BASE64URL_NOPAD.decode(signature.as_bytes()).map_err(|_| UnfitError::Signature)?;
    let issuer = KeyPair::from_public_key(issuer).map_err(|_| UnfitError::Signature)?;
    issuer.verify(signed.as_bytes(), &signature).map_err(|_| UnfitError::Signature)
}

#[cfg(test)]
mod tests {
    use cotal_wire::permissions::Permissions;
    use serde_json::{Value, json};

    use super::*;
    use crate::user::{UserSpec, mint_user};

    fn mint(account: &AccountKeys, key: &UserKey) -> (String, String) {
        let spec = UserSpec {
            name: "bob",
            key,
            tags: Vec::new(),
            permissions: Permissions::default(),
            issued_at: 100,
            expires_at: Some(200),
        };
        let minted = mint_user(account, &spec).unwrap();
        (minted.jwt, key.seed().unwrap().expose().to_owned())
    }

    /// The JWT with one part replaced by what `change` makes of it.
    fn with(jwt: &str, part: usize, change: impl FnOnce(&str) -> String) -> String {
        let mut parts: Vec<String> = jwt.split('.').map(str::to_owned).collect();
        parts[part] = change(&parts[part]);
        parts.join(".")
    }

    /// Another letter in the middle, which leaves the part base64url of the same length.
    fn flip(part: &str) -> String {
        let at = part.len() / 2;
        let other = if &part[at..=at] == "A" { "B" } else { "A" };
        format!("{}{other}{}", &part[..at], &part[at + 1..])
    }

    fn rewritten(part: &str, change: impl FnOnce(&mut Value)) -> String {
        let json = BASE64URL_NOPAD.decode(part.as_bytes()).unwrap();
        let mut value: Value = serde_json::from_slice(&json).unwrap();
        change(&mut value);
        BASE64URL_NOPAD.encode(value.to_string().as_bytes())
    }

    #[test]
    fn only_what_the_account_signed_is_its_credential() {
        let (account, key) = (AccountKeys::generate("alpha"), UserKey::generate());
        let (other, stranger) = (AccountKeys::generate("alpha"), UserKey::generate());
        let (jwt, seed) = mint(&account, &key);
        let (theirs, _) = mint(&other, &key);
        let strange = stranger.seed().unwrap();
        let (own, foreign) = (account.public_key(), other.public_key());
        let read = |jwt: &str, seed: &str| {
            read_creds(&Creds::render(jwt, seed), &account).map(|creds| creds.jwt)
        };
        assert_eq!(read(&jwt, &seed), Ok(jwt.clone()));

        let set = |key: &'static str, to: Value| {
            move |part: &str| rewritten(part, |claims| claims[key] = to)
        };
        let seed = seed.as_str();
        let (form, changed) = ("cannot be parsed", "signature does not fit");
        let cases = [
            ("header damaged", with(&jwt, 0, flip), seed, form),
            ("header written otherwise", with(&jwt, 0, set("x", json!(1))), seed, changed),
            ("claims not base64url", with(&jwt, 1, |c| format!("!{}", &c[1..])), seed, form),
            ("claims say more life", with(&jwt, 1, set("exp", json!(900))), seed, changed),
            ("issuer damaged", with(&jwt, 1, set("iss", json!(flip(&own)))), seed, changed),
            ("issuer another", with(&jwt, 1, set("iss", json!(foreign))), seed, changed),
            ("signature damaged", with(&jwt, 2, flip), seed, changed),
            ("signature cut", with(&jwt, 2, |s| s[4..].to_owned()), seed, form),
            ("signed by another account", theirs, seed, foreign.as_str()),
            ("the seed of another user", jwt.clone(), strange.expose(), "seed"),
        ];
        for (what, jwt, seed, wanted) in cases {
            let error = read(&jwt, seed).expect_err(what).to_string();
            assert!(error.contains(wanted), "{what}: wanted {wanted:?}: {error}");
        }
    }
}
