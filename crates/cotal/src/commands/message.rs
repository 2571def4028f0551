//! The text of a message, from the command line or from standard input.

use std::fmt::Display;

use anyhow::Context as _;
use cotal_client::Draft;
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::args::JsonArg;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// What is to be sent, and under which id.
#[derive(Debug, clap::Args)]
pub struct TextArgs {
    /// The text, or - for standard input; it may begin with a hyphen.
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    text: String,
    /// Send it again under the id of an attempt that was not confirmed; what is stored already is
    /// not stored twice.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Say that it answers the message of this id, as `cotal inbox --ids` shows it.
    #[arg(long, value_name = "ID")]
    reply_to: Option<String>,
}

impl TextArgs {
    /// The message, before anything is dialled.
    pub async fn draft(&self) -> anyhow::Result<Draft> {
        let draft = Draft::text(text(&self.text).await?);
        let draft = match &self.reply_to {
            Some(id) => draft.reply_to(id),
            None => draft,
        };
        Ok(match &self.id {
            Some(id) => draft.retry_of(id),
            None => draft,
        })
    }
}

/// Far above what any broker takes; only keeps an endless input from filling the memory.
const MAX_INPUT_BYTES: u64 = 64 * 1024 * 1024;

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
async fn text(argument: &str) -> anyhow::Result<String> {
    let (text, source) = match argument {
        "-" => (standard_input().await?, "standard input"),
        text => (text.to_owned(), "the text"),
    };
    if text.trim().is_empty() {
        let message = format!("{source} is empty: there is nothing to send");
        return Err(Failure::new(Exit::Usage, message).into());
    }
    Ok(text)
}

async fn standard_input() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let read = tokio::io::stdin().take(MAX_INPUT_BYTES).read_to_end(&mut bytes).await;
    read.context("standard input cannot be read")?;
    let text = String::from_utf8(bytes);
    text.map_err(|_| Failure::new(Exit::Usage, "standard input is not UTF-8 text").into())
}
