//! Posts one text: `cargo run -p cotal-client --example post -- SERVER CREDS CHANNEL TEXT`.

use std::io::Write as _;

use cotal_client::{Channel, Draft, Endpoint, EndpointOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = |what: &str| args.next().ok_or(format!("{what} is missing"));
    let options = EndpointOptions::from_file(next("SERVER")?, next("CREDS")?).send_only();
    let channel = Channel::parse(&next("CHANNEL")?)?;
    let draft = Draft::text(next("TEXT")?);

    let endpoint = Endpoint::connect(options).await?;
    let posted = endpoint.post(&channel, draft).await;
    endpoint.close().await;
    let posted = posted?;
    writeln!(std::io::stderr(), "{} is number {} on {channel}", posted.id, posted.seq)?;
    Ok(())
}
