//! Whether a certificate can serve: judged as the clients of the mesh will judge it.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;

/// Judges the chain `cert` and its `key` at the instant `now`, as a client that trusts `ca`, or
/// else the authorities of this system, judges a broker on loopback.
///
/// # Errors
/// Why it cannot serve, for a person.
pub(super) fn judge(
    cert: &[u8],
    key: &[u8],
    ca: Option<&Path>,
    now: UnixTime,
) -> Result<(), String> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(cert)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("it is not a chain of PEM certificates: {error}"))?;
    let Some((own, between)) = chain.split_first() else {
        return Err("the file holds no PEM certificate".to_owned());
    };
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| format!("its key is not a PEM private key: {error}"))?;
    let provider = Arc::new(default_provider());
    CertifiedKey::from_der(chain.clone(), key, &provider)
        .map_err(|error| format!("the key does not serve the certificate: {error}"))?;
    let roots = Arc::new(roots(ca)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|error| format!("no authority to judge it by: {error}"))?;
    let name = ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
    match verifier.verify_server_cert(own, between, &name, &[], now) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("clients would refuse it for 127.0.0.1: {error}")),
    }
}

/// The day on which the first certificate of a chain ends, such as `2030-01-01`.
pub(super) fn last_day(cert: &[u8]) -> Option<String> {
    let der = CertificateDer::from_pem_slice(cert).ok()?;
    // Certificate, then what was signed, then its version where it has one.
    let (_, signed, _) = element(element(&der)?.1)?;
    let (tag, _, rest) = element(signed)?;
    // The serial number, the algorithm and the issuer stand before the validity.
    let (_, _, rest) = if tag == VERSION { element(rest)? } else { element(signed)? };
    let (_, _, rest) = element(rest)?;
    let (_, _, rest) = element(rest)?;
    let (_, validity, _) = element(rest)?;
    let (_, _, rest) = element(validity)?;
    let (tag, end, _) = element(rest)?;
    let end = std::str::from_utf8(end).ok()?;
    let (year, rest) = if tag == UTC_TIME {
        let (year, rest) = end.split_at_checked(2)?;
        let century = if year < "50" { "20" } else { "19" };
        (format!("{century}{year}"), rest)
    } else {
        let (year, rest) = end.split_at_checked(4)?;
        (year.to_owned(), rest)
    };
    Some(format!("{year}-{}-{}", rest.get(..2)?, rest.get(2..4)?))
}

/// The DER tags that `last_day` tells apart.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;

/// The tag and content of the first DER element, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        // More than this is no certificate that fits a file.
        let length = bytes.iter().try_fold(0usize, |length, &byte| {
            length.checked_mul(256).map(|length| length | usize::from(byte))
        });
        (length?, rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(ca) = ca else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let unreadable = |error: &dyn std::fmt::Display| {
        format!("its authority {} cannot be read: {error}", ca.display())
    };
    for cert in CertificateDer::pem_file_iter(ca).map_err(|e| unreadable(&e))? {
        roots.add(cert.map_err(|e| unreadable(&e))?).map_err(|e| unreadable(&e))?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    struct Made {
        cert: String,
        key: String,
        ca: std::path::PathBuf,
        _dir: tempfile::TempDir,
    }

    fn made(names: &[&str]) -> Made {
        let dir = tempfile::tempdir().unwrap();
        let authority = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = params.self_signed(&authority).unwrap();
        let ca = dir.path().join("ca.pem");
        std::fs::write(&ca, own.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let issuer = Issuer::new(CertificateParams::new(Vec::new()).unwrap(), authority);
        let cert = params.signed_by(&key, &issuer).unwrap().pem();
        Made { cert, key: key.serialize_pem(), ca, _dir: dir }
    }

    fn at(year: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_557_600))
    }

    fn judged(made: &Made, key: &str, ca: Option<&Path>, now: UnixTime) -> String {
        judge(made.cert.as_bytes(), key.as_bytes(), ca, now).err().unwrap_or_default()
    }

    #[test]
    fn the_last_day_is_read_and_garbage_has_none() {
        let good = made(&["127.0.0.1"]);
        assert_eq!(last_day(good.cert.as_bytes()).as_deref(), Some("2030-01-01"));
        let mut late = CertificateParams::new(Vec::new()).unwrap();
        late.not_after = rcgen::date_time_ymd(2061, 7, 9);
        let late = late.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(last_day(late.pem().as_bytes()).as_deref(), Some("2061-07-09"));
        assert_eq!(last_day(b"garbage"), None);
        let der = late.der();
        for end in 0..der.len() {
            let _ = element(&der[..end]);
        }
        assert_eq!(element(&[0x30, 0xff]), None);
        assert_eq!(element(&[0x30, 0x88, 255, 255, 255, 255, 255, 255, 255, 255, 1]), None);
    }

    #[test]
    fn only_what_clients_accept_can_serve() {
        let good = made(&["localhost", "127.0.0.1"]);
        let ca = Some(good.ca.as_path());
        assert_eq!(judged(&good, &good.key, ca, at(2026)), "");
        assert!(judged(&good, &good.key, ca, at(2031)).contains("expired"));
        assert!(judged(&good, &good.key, None, at(2026)).contains("clients would refuse it"));
        let other = made(&["broker.example"]);
        let named = judged(&other, &other.key, Some(&other.ca), at(2026));
        assert!(named.contains("127.0.0.1"), "{named}");
        assert!(judged(&good, &other.key, ca, at(2026)).contains("key does not serve"));
        assert!(judged(&good, "no key", ca, at(2026)).contains("not a PEM private key"));
        let garbage = judge(b"garbage", good.key.as_bytes(), ca, at(2026)).unwrap_err();
        assert!(garbage.contains("no PEM certificate"), "{garbage}");
    }
}
