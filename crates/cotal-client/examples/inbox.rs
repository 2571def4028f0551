//! Joins a channel and prints what arrives until Ctrl-C:
//! `cargo run -p cotal-client --example inbox -- SERVER CREDS CHANNEL`.

use std::io::Write as _;

use cotal_client::{Channel, Endpoint, EndpointOptions, Event};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = |what: &str| args.next().ok_or(format!("{what} is missing"));
    let options = EndpointOptions::from_file(next("SERVER")?, next("CREDS")?);
    let channel = Channel::parse(&next("CHANNEL")?)?;

    let endpoint = Endpoint::connect(options).await?;
    // Two halves: what is heard now, and what is kept while this agent is away.
    let joined = endpoint.join(&channel).await;
    writeln!(std::io::stderr(), "{joined}")?;
    let read = tokio::select! {
        read = read(&endpoint) => read,
        stop = tokio::signal::ctrl_c() => stop.map_err(Into::into),
    };
    // Gives back what was not acked, and flushes what was.
    endpoint.close().await;
    read
}

async fn read(endpoint: &Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    while let Some(event) = endpoint.next().await {
        match event {
            Event::Message(incoming) => {
                let mut out = std::io::stdout().lock();
                writeln!(out, "{}: {}", incoming.sender, incoming.text())?;
                incoming.ack().await?;
            }
            Event::Notice(notice) => writeln!(std::io::stderr(), "{notice}")?,
        }
    }
    Ok(())
}
