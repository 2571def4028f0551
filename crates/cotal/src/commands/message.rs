//! The text of a message, from the command line or from standard input.

use anyhow::Context as _;
use tokio::io::AsyncReadExt;

use crate::exit::{Exit, Failure};

/// Far above what any broker takes; only keeps an endless input from filling the memory.
const MOST: u64 = 64 * 1024 * 1024;

/// The text itself, or standard input for `-`.
pub async fn text(argument: String) -> anyhow::Result<String> {
    if argument != "-" {
        return Ok(argument);
    }
    let mut text = String::new();
    tokio::io::stdin()
        .take(MOST)
        .read_to_string(&mut text)
        .await
        .context("standard input is no text")?;
    if text.is_empty() {
        return Err(Failure::new(Exit::Usage, "standard input was empty: nothing to send").into());
    }
    Ok(text)
}
