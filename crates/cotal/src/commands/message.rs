//! The text of a message, from the command line or from standard input.

use std::fmt::Display;

use anyhow::Context as _;
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::args::JsonArg;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Far above what any broker takes; only keeps an endless input from filling the memory.
const MOST: u64 = 64 * 1024 * 1024;

/// Prints what was stored: `line`, or both numbers as JSON. That it cannot be printed does not undo
/// it.
pub fn print_stored(
    (id, seq): (&str, u64),
    line: impl Display,
    json: JsonArg,
    ctx: &Context,
) -> anyhow::Result<Exit> {
    let printed = if json.json {
        ctx.out.json(&json!({ "id": id, "seq": seq }))
    } else {
        ctx.out.data(line).map_err(Into::into)
    };
    printed
        .with_context(|| format!("it was sent (id {id}, number {seq}), and cannot be printed"))?;
    Ok(Exit::Ok)
}

/// The text itself, or standard input for `-`.
pub async fn text(argument: String) -> anyhow::Result<String> {
    if argument != "-" {
        return Ok(argument);
    }
    let mut bytes = Vec::new();
    let read = tokio::io::stdin().take(MOST).read_to_end(&mut bytes).await;
    read.context("standard input cannot be read")?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::new(Exit::Usage, "standard input is no UTF-8 text"))?;
    if text.is_empty() {
        return Err(Failure::new(Exit::Usage, "standard input was empty: nothing to send").into());
    }
    Ok(text)
}
