//! A publisher that writes the protocol itself, and so headers that no client library would send.

use cotal_wire::creds::Creds;
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A connection to the broker, authenticated with a credential.
#[derive(Debug)]
pub struct RawPublisher {
    stream: BufReader<TcpStream>,
}

impl RawPublisher {
    /// Connects to `host_port` with a creds file's text.
    ///
    /// # Panics
    /// When the broker does not let it in.
    pub async fn connect(host_port: &str, creds: &str) -> Self {
        let creds = Creds::parse(creds).expect("a credential");
        let stream = TcpStream::connect(host_port).await.expect("the broker");
        let mut raw = Self { stream: BufReader::new(stream) };
        let info = raw.line().await;
        let info: Value = serde_json::from_str(info.trim_start_matches("INFO ")).expect("INFO");
        let nonce = info["nonce"].as_str().expect("a nonce");
        let key = KeyPair::from_seed(&creds.seed).expect("a seed");
        let signed = key.sign(nonce.as_bytes()).expect("a signature");
        let connect = json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true,
            "jwt": creds.jwt, "sig": BASE64URL_NOPAD.encode(&signed),
        });
        raw.send(format!("CONNECT {connect}\r\n").as_bytes()).await;
        raw.settled().await;
        raw
    }

    /// Publishes a message with this header block; `to` is the subject, and the reply subject if
    /// there is one.
    pub async fn publish(&mut self, to: &[u8], block: &[u8], body: &[u8]) {
        let (header, total) = (block.len(), block.len() + body.len());
        self.send(&[b"HPUB ", to, format!(" {header} {total}\r\n").as_bytes()].concat()).await;
        self.send(&[block, body, b"\r\n"].concat()).await;
    }

    /// Waits until the broker has read everything that was sent.
    ///
    /// # Panics
    /// When it forbade something, or has closed the connection.
    pub async fn settled(&mut self) {
        self.send(b"PING\r\n").await;
        loop {
            match self.line().await.as_str() {
                "PONG" => return,
                line => assert!(!line.is_empty() && !line.starts_with("-ERR"), "{line}"),
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the broker reads");
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.expect("the broker answers");
        line.trim_end().to_owned()
    }
}
