//! One connection of the library: bytes both ways, and the broker's messages looked at.

use std::io;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::warn;

use super::dial::Dialled;
use super::frames::{Frames, Step};
use super::notes::Notes;

/// What is read at once from a connection that is idle, and from one that is busy.
const FEW: usize = 4 * 1024;
const MANY: usize = 64 * 1024;
/// One side has closed: how long what is on its way to the other may take.
const LINGER: Duration = Duration::from_secs(1);
/// The library gives a connection up after three pings without an answer; nobody waits any more
/// for what could not be sent in twice that time.
const STALLED: Duration = Duration::from_secs(30);

/// Which side ended the connection.
enum Ended {
    Library,
    Broker,
}

/// Connects the library with the broker until one of them closes; the other is closed then.
pub(super) async fn relay(library: TcpStream, dialled: Dialled, notes: &Notes) {
    let (mut from_library, mut to_library) = tokio::io::split(library);
    let (mut from_broker, mut to_broker) = tokio::io::split(dialled.stream);
    let ended = tokio::select! {
        () = up(&mut from_library, &mut to_broker) => Ended::Library,
        () = down(dialled.said, &mut from_broker, &mut to_library, notes) => Ended::Broker,
    };
    let _ = timeout(LINGER, async {
        match ended {
            Ended::Library => finish(&mut to_broker, &mut from_broker).await,
            Ended::Broker => finish(&mut to_library, &mut from_library).await,
        }
    })
    .await;
}

/// Returns when the library has closed and all that it sent has been passed on.
async fn up(library: &mut (impl AsyncRead + Unpin), broker: &mut (impl AsyncWrite + Unpin)) {
    let mut intake = Intake::new(BytesMut::new());
    while matches!(intake.read(library).await, Ok(1..)) {
        let sent = timeout(STALLED, async {
            broker.write_all(&intake.buffer).await?;
            broker.flush().await
        });
        match sent.await {
            Ok(Ok(())) => intake.buffer.clear(),
            // What the broker said last is still to be read.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => return,
        }
    }
}

/// Returns when the broker has closed and all that it sent has been passed on.
async fn down(
    said: BytesMut,
    broker: &mut (impl AsyncRead + Unpin),
    library: &mut (impl AsyncWrite + Unpin),
    notes: &Notes,
) {
    let mut intake = Intake::new(said);
    let mut frames = Frames::default();
    loop {
        match pass_on(&mut frames, &mut intake.buffer, library, notes).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return warn!(%error, "the connection is closed"),
            // That the library has closed is found by reading.
            Err(_) => std::future::pending().await,
        }
        if !matches!(intake.read(broker).await, Ok(1..)) {
            return;
        }
    }
}

/// Passes on whatever has come whole.
async fn pass_on(
    frames: &mut Frames,
    buffer: &mut BytesMut,
    library: &mut (impl AsyncWrite + Unpin),
    notes: &Notes,
) -> io::Result<Result<(), super::frames::NoProtocol>> {
    let mut passes = 0;
    let outcome = loop {
        match frames.next(&buffer[passes..]) {
            Ok(Step::More) => break Ok(()),
            Ok(Step::Pass(bytes)) => passes += bytes,
            Ok(Step::Replace { taken, with, subject }) => {
                notes.unreadable(&subject);
                library.write_all(&buffer[..passes]).await?;
                library.write_all(&with).await?;
                buffer.advance(passes + taken);
                passes = 0;
            }
            Err(error) => break Err(error),
        }
    };
    library.write_all(&buffer[..passes]).await?;
    buffer.advance(passes);
    Ok(outcome)
}

/// Says that nothing more comes, and waits until the other side says so too: closed before, it
/// could lose what it has not read yet.
async fn finish(to: &mut (impl AsyncWrite + Unpin), from: &mut (impl AsyncRead + Unpin)) {
    let _ = to.shutdown().await;
    let mut left = [0_u8; 1024];
    while matches!(from.read(&mut left).await, Ok(1..)) {}
}

/// A buffer that is large only while there is much to read.
struct Intake {
    buffer: BytesMut,
    want: usize,
}

impl Intake {
    fn new(buffer: BytesMut) -> Self {
        Self { buffer, want: FEW }
    }

    async fn read(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        if self.buffer.is_empty() && self.buffer.capacity() > 2 * self.want {
            self.buffer = BytesMut::new();
        }
        self.buffer.reserve(self.want);
        let room = self.buffer.capacity() - self.buffer.len();
        let read = from.read_buf(&mut self.buffer).await?;
        self.want = if read == room { self.want * 2 } else { self.want / 2 }.clamp(FEW, MANY);
        Ok(read)
    }
}
