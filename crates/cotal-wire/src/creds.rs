//! Credential files and the claims inside them (`wire.md` §1, §9).
//!
//! Reading proves shape only; who holds the account's keys can verify the signature as well, and
//! whether the broker accepts a credential is the broker's to say.

use std::fmt;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::ids::{ConnId, EndpointName, Lifecycle, LifecycleUid, Principal, Role};
use crate::names::Space;

const MAX_CREDS: usize = 256 * 1024;
const SIGNATURE_BYTES: usize = 64;

/// The value of an observer's `rotation:` tag where no space's daemon may kick: the broker hosts
/// several spaces, and a kick reaches all of them (EVC-5).
pub const KICKS_ARE_THE_HOSTS: &str = "host";

/// Why a text is not a usable credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredsError {
    /// A block of the file is missing or cut.
    #[error("the credential has no complete {0} block; was it cut short?")]
    Block(&'static str),
    /// The JWT cannot be parsed.
    #[error("the credential's JWT cannot be parsed: {0}")]
    Jwt(String),
    /// The file is larger than any credential.
    #[error("the credential is larger than {MAX_CREDS} bytes")]
    TooLarge,
    /// A tag that this use needs is missing or malformed.
    #[error("the credential has no usable {0:?} tag; it was not minted for this use")]
    Tag(&'static str),
}

/// A two-block `.creds` file. `Debug` never shows its secrets.
#[derive(Clone)]
pub struct Creds {
    /// The user JWT.
    pub jwt: String,
    /// The user's seed: secret.
    pub seed: String,
    /// What the JWT says.
    pub claims: Claims,
}

impl fmt::Debug for Creds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Creds").field("subject", &self.claims.subject).finish_non_exhaustive()
    }
}

/// The claims of a user JWT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// The user's nkey: the connection's id.
    pub subject: ConnId,
    /// The user's name.
    pub name: String,
    /// The account's nkey.
    pub account: String,
    /// The nkey that signed it: the account's, or that of a signing key of the account.
    pub issuer: String,
    /// When it was issued, Unix seconds.
    pub issued_at: i64,
    /// When it expires, Unix seconds.
    pub expires_at: Option<i64>,
    /// The tags, in their case.
    pub tags: Vec<String>,
    /// Subjects it may publish on.
    pub pub_allow: Vec<String>,
    /// Subjects it may subscribe to.
    pub sub_allow: Vec<String>,
}

#[derive(Deserialize)]
struct RawHeader {
    typ: String,
    alg: String,
}

#[derive(Deserialize)]
struct RawClaims {
    sub: String,
    iss: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    iat: i64,
    exp: Option<i64>,
    nats: RawNats,
}

#[derive(Deserialize)]
struct RawNats {
    #[serde(default)]
    tags: Vec<String>,
    issuer_account: Option<String>,
    #[serde(default, rename = "pub")]
    publish: RawAllow,
    #[serde(default, rename = "sub")]
    subscribe: RawAllow,
}

#[derive(Deserialize, Default)]
struct RawAllow {
    #[serde(default)]
    allow: Vec<String>,
}

impl Claims {
    /// What makes this an unscoped credential, if it is one: a list that allows everything, because
    /// it is empty or names everything (CRD-1).
    #[must_use]
    pub fn unrestricted(&self) -> Option<String> {
        [("publish", &self.pub_allow), ("subscribe", &self.sub_allow)].into_iter().find_map(
            |(what, allowed)| {
                let wide = |subject: &&String| {
                    let mut tokens = subject.split('.');
                    let first = tokens.next().unwrap_or_default();
                    let whole = first.starts_with('$') && tokens.next() == Some(">");
                    matches!(first, ">" | "*") || whole
                };
                if allowed.is_empty() {
                    return Some(format!("it may {what} on everything"));
                }
                allowed.iter().find(wide).map(|subject| format!("it may {what} on {subject}"))
            },
        )
    }

    /// Reads the claims of a JWT whose form is whole, without judging its signature.
    ///
    /// # Errors
    /// When the text is not a user JWT, or one that the broker would refuse for its form.
    pub fn parse(jwt: &str) -> Result<Self, CredsError> {
        let bad = |what: &str| CredsError::Jwt(what.to_owned());
        let parts: Vec<&str> = jwt.split('.').collect();
        let [header, body, signature] = parts[..] else {
            return Err(bad("it has not three parts"));
        };
        check_header(header)?;
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes());
        if !signature.is_ok_and(|bytes| bytes.len() == SIGNATURE_BYTES) {
            return Err(bad("its signature is not one of ed25519"));
        }
        let json = BASE64URL_NOPAD
            .decode(body.as_bytes())
            .map_err(|_| bad("its claims are not base64url"))?;
        let raw: RawClaims = serde_json::from_slice(&json)
            .map_err(|e| bad(&format!("its claims do not read: {e}")))?;
        let subject = ConnId::parse(&raw.sub).map_err(|_| bad("it is not a user's"))?;
        Ok(Self {
            subject,
            name: raw.name,
            account: raw.nats.issuer_account.unwrap_or_else(|| raw.iss.clone()),
            issuer: raw.iss,
            issued_at: raw.iat,
            expires_at: raw.exp.filter(|&exp| exp > 0),
            tags: raw.nats.tags,
            pub_allow: raw.nats.publish.allow,
            sub_allow: raw.nats.subscribe.allow,
        })
    }

    /// The value of the tag `key:`.
    #[must_use]
    pub fn tag(&self, key: &str) -> Option<&str> {
        self.tags.iter().find_map(|tag| tag.strip_prefix(key)?.strip_prefix(':'))
    }

    /// Who the credential speaks for.
    ///
    /// # Errors
    /// When the `principal:` tag is missing or malformed.
    pub fn principal(&self) -> Result<Principal, CredsError> {
        let tag = self.tag("principal").ok_or(CredsError::Tag("principal"))?;
        Principal::parse(tag).map_err(|_| CredsError::Tag("principal"))
    }

    /// The space it was minted for.
    ///
    /// # Errors
    /// When the `space:` tag is missing or malformed.
    pub fn space(&self) -> Result<Space, CredsError> {
        let tag = self.tag("space").ok_or(CredsError::Tag("space"))?;
        Space::from_name(tag).map_err(|_| CredsError::Tag("space"))
    }

    /// The agent incarnation it was minted for.
    ///
    /// # Errors
    /// When the `principal:` or `lifecycle:` tag is missing or malformed.
    pub fn lifecycle(&self) -> Result<Lifecycle, CredsError> {
        let tag = self.tag("lifecycle").ok_or(CredsError::Tag("lifecycle"))?;
        let uid = LifecycleUid::parse(tag).map_err(|_| CredsError::Tag("lifecycle"))?;
        Ok(Lifecycle::new(self.principal()?, uid))
    }

    /// The workflow endpoint it was minted for.
    ///
    /// # Errors
    /// When the `endpoint:` tag is missing or malformed.
    pub fn endpoint(&self) -> Result<EndpointName, CredsError> {
        let tag = self.tag("endpoint").ok_or(CredsError::Tag("endpoint"))?;
        EndpointName::parse(tag).map_err(|_| CredsError::Tag("endpoint"))
    }

    /// The role it holds, if any.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        Role::parse(self.tag("role")?).ok()
    }
}

impl Creds {
    /// Reads a `.creds` file.
    ///
    /// # Errors
    /// When a block is missing or cut, or the JWT is not a user's.
    pub fn parse(text: &str) -> Result<Self, CredsError> {
        if text.len() > MAX_CREDS {
            return Err(CredsError::TooLarge);
        }
        let jwt = block(text, "NATS USER JWT").ok_or(CredsError::Block("NATS USER JWT"))?;
        let seed = block(text, "USER NKEY SEED").ok_or(CredsError::Block("USER NKEY SEED"))?;
        let claims = Claims::parse(jwt)?;
        Ok(Self { jwt: jwt.to_owned(), seed: seed.to_owned(), claims })
    }

    /// The seed of a file of which nothing else need be whole, so that a credential whose JWT is
    /// damaged can be minted anew for the same key.
    #[must_use]
    pub fn seed_of(text: &str) -> Option<&str> {
        block(text, "USER NKEY SEED")
    }

    /// SHA-256 of the JWT in hex: how `reloadCreds` names a credential.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        HEXLOWER.encode(&Sha256::digest(self.jwt.as_bytes()))
    }

    /// Writes the two blocks.
    #[must_use]
    pub fn render(jwt: &str, seed: &str) -> String {
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             ************************* IMPORTANT *************************\n\
             NKEY Seed printed below can be used to sign and prove identity.\n\
             NKEYs are sensitive and should be treated as secrets.\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n\
             *************************************************************\n"
        )
    }
}

/// The broker reads the two words in any case, and takes no other ones.
fn check_header(header: &str) -> Result<(), CredsError> {
    let bad = || CredsError::Jwt("its header is not that of a NATS JWT".to_owned());
    let json = BASE64URL_NOPAD.decode(header.as_bytes()).map_err(|_| bad())?;
    let raw: RawHeader = serde_json::from_slice(&json).map_err(|_| bad())?;
    let is_nats =
        raw.typ.eq_ignore_ascii_case("JWT") && raw.alg.eq_ignore_ascii_case("ed25519-nkey");
    is_nats.then_some(()).ok_or_else(bad)
}

fn block<'a>(text: &'a str, title: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("BEGIN {title}"))?;
    let (_, rest) = rest.split_once('\n')?;
    let (body, _) = rest.split_once(&format!("END {title}"))?;
    let body = body.trim_end_matches('-').trim();
    (!body.is_empty() && !body.contains(char::is_whitespace)).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwt() -> String {
        let claims = format!(
            r#"{{"jti":"x","iat":1,"exp":9,"iss":"A1","sub":"U{}","name":"bob","nats":{{"tags":["principal:local.Bob","space:s","lifecycle:{}"],"pub":{{"allow":["x"]}},"sub":{{}}}}}}"#,
            "A".repeat(55),
            "b".repeat(26)
        );
        let header = r#"{"typ":"JWT","alg":"ed25519-nkey"}"#;
        let parts = [header.as_bytes(), claims.as_bytes(), &[7; SIGNATURE_BYTES]];
        parts.map(|part| BASE64URL_NOPAD.encode(part)).join(".")
    }

    #[test]
    fn a_jwt_whose_form_is_damaged_does_not_read() {
        let whole = jwt();
        let [header, claims, signature] = whole.split('.').collect::<Vec<_>>()[..] else {
            panic!("{whole}");
        };
        let header_of = |json: &str| BASE64URL_NOPAD.encode(json.as_bytes());
        let other_type = header_of(r#"{"typ":"JWS","alg":"ed25519-nkey"}"#);
        let other_algorithm = header_of(r#"{"typ":"JWT","alg":"none"}"#);
        assert!(Claims::parse(&whole).is_ok());
        for (damaged, why) in [
            (format!("{header}.{claims}"), "three parts"),
            (format!("{whole}.{signature}"), "three parts"),
            (format!("e30.{claims}.{signature}"), "header"),
            (format!("x{}.{claims}.{signature}", &header[1..]), "header"),
            (format!("{}.{claims}.{signature}", &header[1..]), "header"),
            (format!("{other_type}.{claims}.{signature}"), "header"),
            (format!("{other_algorithm}.{claims}.{signature}"), "header"),
            (format!("{header}.!{}.{signature}", &claims[1..]), "claims"),
            (format!("{header}.{claims}."), "signature"),
            (format!("{header}.{claims}.{}", &signature[4..]), "signature"),
            (format!("{header}.{claims}.!{}", &signature[1..]), "signature"),
        ] {
            let error = Claims::parse(&damaged).unwrap_err().to_string();
            assert!(error.contains(why), "wanted {why:?}: {error}: {damaged}");
        }
    }

    #[test]
    fn the_seed_of_a_file_with_a_damaged_jwt_still_reads() {
        let text = Creds::render("damaged", "SUSEED");
        assert!(Creds::parse(&text).is_err());
        assert_eq!(Creds::seed_of(&text), Some("SUSEED"));
        assert_eq!(Creds::seed_of(&text[..60]), None);
    }

    #[test]
    fn creds_read_back_and_hide_their_seed() {
        let text = Creds::render(&jwt(), "SUSEED");
        let creds = Creds::parse(&text).unwrap();
        assert_eq!(creds.seed, "SUSEED");
        assert_eq!(creds.claims.principal().unwrap().as_str(), "local.Bob");
        assert_eq!(creds.claims.lifecycle().unwrap().uid.as_str(), "b".repeat(26));
        assert_eq!(creds.claims.expires_at, Some(9));
        assert!(!format!("{creds:?}").contains("SUSEED"));
    }

    #[test]
    fn a_cut_file_names_the_missing_block() {
        let text = Creds::render(&jwt(), "SUSEED");
        for cut in [0, 10, 60, text.len() / 2, text.len() - 130] {
            assert!(matches!(Creds::parse(&text[..cut]), Err(CredsError::Block(_))), "{cut}");
        }
        assert!(Creds::parse("garbage").is_err());
    }
}
