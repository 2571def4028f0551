//! The real client library behind the relay, and a broker that sends it whatever chance makes.

use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use super::Guard;
use crate::transport::TlsMode;

const MESSAGES: u64 = 20_000;
const INFO: &str = r#"INFO {"server_id":"S","server_name":"s","version":"2.15.1","go":"go1","host":"127.0.0.1","port":4222,"headers":true,"max_payload":1048576,"proto":1,"client_id":1}"#;
/// What blocks and subjects are made of.
const PIECES: [&[u8]; 20] = [
    b"NATS/1.0",
    b"\r\n",
    b"\r\n",
    b"\r",
    b"\n",
    b":",
    b": ",
    b" ",
    b"\t",
    b"A",
    b"b",
    b"503",
    b"\xff",
    b"\xc3\xa4",
    b"\xe2\x80\x83",
    b"\0",
    b"\x0b",
    b"Nats-Stream: S",
    b"A: b\r\n",
    b"\xc2\x85",
];

/// A small generator, so that a failure can be seen again from its seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let count = self.below(most + 1);
        let mut piece = || PIECES[usize::try_from(self.below(20)).expect("an index")];
        (0..count).flat_map(|_| piece().iter().copied()).collect()
    }

    fn name(&mut self) -> Vec<u8> {
        let mut name = self.bytes(3);
        name.retain(|byte| !b" \t\r\n".contains(byte));
        name.insert(0, b'n');
        name
    }

    /// A message with this number for a body.
    fn message(&mut self, sid: u64, number: u64) -> Vec<u8> {
        let (subject, mut reply) = (self.name(), Vec::new());
        if self.below(2) == 0 {
            reply = [&b" "[..], &self.name()].concat();
        }
        let mut block = self.bytes(12);
        if self.below(8) > 0 {
            block.splice(..0, *b"NATS/1.0");
            block.extend_from_slice(b"\r\n\r\n");
        }
        let body = number.to_string();
        let sizes = match self.below(5) {
            0 => {
                block.clear();
                format!("{}", body.len())
            }
            _ => format!("{} {}", block.len(), block.len() + body.len()),
        };
        let operation: &[u8] = if sizes.contains(' ') { b"HMSG " } else { b"MSG " };
        let line = format!(" {sid}").into_bytes();
        let sizes = format!(" {sizes}\r\n").into_bytes();
        [operation, &subject, &line, &reply, &sizes, &block, body.as_bytes(), b"\r\n"].concat()
    }
}

/// Greets one client, answers its pings, and sends it messages once it has subscribed.
async fn broker(listener: TcpListener, mut chance: Chance) {
    let (stream, _) = listener.accept().await.expect("the relay");
    let (reader, mut writer) = stream.into_split();
    writer.write_all(format!("{INFO}\r\n").as_bytes()).await.expect("the first line");
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line == "PING" {
            writer.write_all(b"PONG\r\n").await.expect("a pong");
        }
        let Some(sid) = line.strip_prefix("SUB ").and_then(|sub| sub.split(' ').next_back()) else {
            continue;
        };
        let sid = sid.parse().expect("a subscription");
        let mut all = Vec::new();
        for number in 0..MESSAGES {
            all.extend(chance.message(sid, number));
            if chance.below(50) == 0 {
                writer.write_all(&all).await.expect("messages");
                all.clear();
            }
        }
        writer.write_all(&all).await.expect("messages");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_reads_every_message_whatever_a_publisher_made_of_it() {
    let mut seed = [0_u8; 8];
    getrandom::fill(&mut seed).expect("randomness");
    let seed = u64::from_le_bytes(seed) | 1;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    let broker = tokio::spawn(broker(listener, Chance(seed)));
    let guard =
        Guard::open(url.parse().expect("an address"), TlsMode::Plain).await.expect("a guard");
    let client = async_nats::ConnectOptions::new()
        .max_reconnects(1)
        .subscription_capacity(usize::try_from(MESSAGES).expect("a count"))
        .connect(guard.url())
        .await
        .expect("a connection");
    let mut messages = client.subscribe("n").await.expect("a subscription");
    for number in 0..MESSAGES {
        let next = tokio::time::timeout(Duration::from_secs(10), messages.next()).await;
        let message = next.ok().flatten();
        let body = message.map(|message| message.payload);
        assert_eq!(body.as_deref(), Some(number.to_string().as_bytes()), "seed {seed}");
    }
    drop((messages, client));
    broker.await.expect("the broker's end");
}

/// Whoever else finds the address gains what it has anyway: a way to the broker's own port.
#[tokio::test]
async fn the_address_is_taken_for_as_long_as_the_library_may_dial_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    let guard =
        Guard::open(url.parse().expect("an address"), TlsMode::Plain).await.expect("a guard");
    let address = guard.url().trim_start_matches("nats://").to_owned();
    assert!(TcpListener::bind(&address).await.is_err(), "taken by two");
    let mut stranger = tokio::net::TcpStream::connect(&address).await.expect("a way");
    let (mut broker, _) = listener.accept().await.expect("the relay");
    broker.write_all(format!("{INFO}\r\n").as_bytes()).await.expect("the first line");
    let mut heard = vec![0; INFO.len()];
    stranger.read_exact(&mut heard).await.expect("the first line");
    assert_eq!(heard, INFO.as_bytes());
    let mut pipes = guard.pipes();
    pipes.wait_for(|pipes| *pipes == 1).await.expect("counted");
    drop(stranger);
    let mut rest = Vec::new();
    broker.read_to_end(&mut rest).await.expect("the end");
    drop(broker);
    pipes.wait_for(|pipes| *pipes == 0).await.expect("closed on both sides");
    drop(guard);
    while TcpListener::bind(&address).await.is_err() {
        tokio::task::yield_now().await;
    }
}
