//! The certificate of a root's broker: made for it, or taken from whoever has one.
//!
//! Invariant: the key never leaves the root and is its owner's alone. What stands is not replaced
//! unless another certificate is given.

use std::path::{Path, PathBuf};

use cotal_broker::Tls;
use cotal_workspace::Root;
use cotal_workspace::files::{self, Privacy};
use rustls::pki_types::UnixTime;

use super::certificate::{judge, last_day};
use crate::error::ManagerError;

/// What a certificate that is made here is for: the broker listens on loopback.
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// A certificate that somebody brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnCertificate {
    /// The chain.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authority that signed it, where the system does not trust it.
    pub ca: Option<PathBuf>,
}

/// Sees to it that the root has a certificate; one that is given replaces what there is.
///
/// Tells what clients are to trust: the certificate itself when it was made here, or else whatever
/// the system trusts.
///
/// # Errors
/// When it cannot be read, made or written.
pub fn ensure_certificate(
    root: &Root,
    own: Option<&OwnCertificate>,
) -> Result<Option<PathBuf>, ManagerError> {
    let Tls { cert, key, .. } = certificate(root);
    let made = root.broker_tls_dir().join("ca.pem");
    files::private_dir(&root.broker_tls_dir())?;
    if let Some(own) = own {
        let (given_key, given_cert) = (given(&own.key)?, given(&own.cert)?);
        judge(&given_cert, &given_key, own.ca.as_deref(), UnixTime::now()).map_err(|why| {
            ManagerError::Certificate(format!("{} cannot serve: {why}", own.cert.display()))
        })?;
        files::replace(&key, &given_key, Privacy::Secret)?;
        files::replace(&cert, &given_cert, Privacy::Secret)?;
        files::remove(&made)?;
        return Ok(None);
    }
    if files::read(&cert)?.is_some() && files::read(&key)?.is_some() {
        return Ok(files::read(&made)?.map(|_| made));
    }
    let names = NAMES.map(str::to_owned);
    let fresh = rcgen::generate_simple_self_signed(names)
        .map_err(|e| ManagerError::Certificate(e.to_string()))?;
    let pem = fresh.cert.pem();
    files::replace(&key, fresh.signing_key.serialize_pem().as_bytes(), Privacy::Secret)?;
    files::replace(&made, pem.as_bytes(), Privacy::Secret)?;
    // It goes last, so that a crash in between leaves none that looks complete.
    files::replace(&cert, pem.as_bytes(), Privacy::Secret)?;
    Ok(Some(made))
}

/// Whether the certificate that stands on the root can serve now, to clients that trust `ca` or
/// else this system's authorities.
///
/// # Errors
/// Why it cannot, for a person.
pub fn judge_certificate(root: &Root, ca: Option<&Path>) -> Result<(), String> {
    let Tls { cert, key, .. } = certificate(root);
    let read = |path: &Path| match files::read(path) {
        Ok(Some(text)) => Ok(text.into_bytes()),
        Ok(None) => Err(format!("{} is missing", path.display())),
        Err(error) => Err(error.to_string()),
    };
    judge(&read(&cert)?, &read(&key)?, ca, UnixTime::now())
}

/// The last day of the certificate that stands on the root, such as `2030-01-01`.
#[must_use]
pub fn certificate_ends(root: &Root) -> Option<String> {
    let text = files::read(&certificate(root).cert).ok()??;
    last_day(text.as_bytes())
}

/// Where the broker finds its certificate.
pub(super) fn certificate(root: &Root) -> Tls {
    let dir = root.broker_tls_dir();
    Tls { cert: dir.join("cert.pem"), key: dir.join("key.pem"), client_ca: None }
}

fn given(path: &Path) -> Result<Vec<u8>, ManagerError> {
    std::fs::read(path)
        .map_err(|e| ManagerError::Certificate(format!("{} cannot be read: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_once_and_replaced_by_one_that_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let ca = ensure_certificate(&root, None).unwrap().unwrap();
        let made = std::fs::read(&ca).unwrap();
        assert_eq!(ensure_certificate(&root, None).unwrap(), Some(ca.clone()));
        assert_eq!(std::fs::read(&ca).unwrap(), made);
        let theirs = rcgen::generate_simple_self_signed(NAMES.map(str::to_owned)).unwrap();
        let path = |name: &str| dir.path().join(name);
        let own = OwnCertificate { cert: path("c"), key: path("k"), ca: Some(path("c")) };
        assert!(ensure_certificate(&root, Some(&own)).is_err());
        std::fs::write(&own.cert, theirs.cert.pem()).unwrap();
        std::fs::write(&own.key, "their key").unwrap();
        let refused = ensure_certificate(&root, Some(&own)).unwrap_err().to_string();
        assert!(refused.contains("cannot serve"), "{refused}");
        assert_eq!(std::fs::read(certificate(&root).cert).unwrap(), made, "it stays");
        let key = theirs.signing_key.serialize_pem();
        std::fs::write(&own.key, &key).unwrap();
        assert_eq!(ensure_certificate(&root, Some(&own)).unwrap(), None);
        assert_eq!(ensure_certificate(&root, None).unwrap(), None);
        assert_eq!(std::fs::read(certificate(&root).key).unwrap(), key.as_bytes());
    }
}
