//! stub
use super::*;
use tokio::sync::OwnedSemaphorePermit;

#[derive(Debug)]
pub(super) struct Submission {
    pub(super) messages: Vec<Outgoing>,
    pub(super) tell: oneshot::Sender<Result<(), BatchError>>,
    pub(super) permit: OwnedSemaphorePermit,
}
pub(super) struct Actor {
    connection: Connection,
    receiver: mpsc::Receiver<Submission>,
}
impl Actor {
    pub(super) async fn new(
        connection: &Connection,
        _options: WriterOptions,
        receiver: mpsc::Receiver<Submission>,
    ) -> Result<Self, NatsError> {
        Ok(Self {
            connection: connection.clone(),
            receiver,
        })
    }
    pub(super) async fn run(mut self) {
        while let Some(s) = self.receiver.recv().await {
            let mut failed = Vec::new();
            let total = s.messages.len();
            for (i, m) in s.messages.into_iter().enumerate() {
                let id = m.msg_id.clone();
                let _ = m.wire_size();
                let headers = m.header_map();
                if let Err(e) = self
                    .connection
                    .publish_confirmed(m.subject, headers, m.payload, id.as_deref())
                    .await
                {
                    failed.push((i, e));
                }
            }
            let _ = s.tell.send(if failed.is_empty() {
                Ok(())
            } else {
                Err(BatchError { failed, total })
            });
            drop(s.permit);
        }
    }
}
