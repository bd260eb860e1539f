//! Reading a reflector's pages, one request for each connection.

use std::net::SocketAddr;
use std::time::Duration;

use nacre_quantity::Escaped;
use serde_json::Value;

use super::settings::HTTP_DEFAULT;
use super::target::resolve;
use crate::failure::Failure;

/// The time limit of a connection attempt, and of the beginning of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time limit of the rest of an answer.
const BODY_PATIENCE: Duration = Duration::from_secs(60);

/// The greatest length of an answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// The most characters of an answer that a message repeats.
const SAID_CHARS_MAX: usize = 500;

/// The address of a reflector's pages.
#[derive(clap::Args, Clone, Debug)]
pub struct At {
    /// The HTTP address of the reflector: HOST:PORT [default: 127.0.0.1:7480]
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
}

impl At {
    fn address(&self) -> Result<SocketAddr, Failure> {
        let text = self.http.as_deref().unwrap_or(HTTP_DEFAULT);
        let text = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        if let Ok(address) = text.parse() {
            return Ok(address);
        }
        let (host, port) = text.rsplit_once(':').unwrap_or((text, "7480"));
        let port = port.parse().map_err(|_| Failure::Usage(format!("'{text}' is not HOST:PORT")))?;
        resolve(host, port)
    }

    /// Requests a path, and returns the JSON of the answer.
    pub fn get(&self, path: &str) -> Result<Value, Failure> {
        let address = self.address()?;
        let failed = |why: String| {
            Failure::Failed(format!(
                "cannot ask the reflector at http://{address}: {why}; name another one with --http"
            ))
        };
        let status_and_body = exchange(&format!("http://{address}{path}"));
        let (status, body) = status_and_body.map_err(|error| {
            failed(match error {
                ureq::Error::Io(error) => error.to_string(),
                ureq::Error::Timeout(_) => format!("it does not answer within {} s", PATIENCE.as_secs()),
                ureq::Error::BodyExceedsLimit(bytes) => format!("its answer is longer than {bytes} B"),
                ureq::Error::Protocol(_) => "it speaks no HTTP".to_owned(),
                error => error.to_string(),
            })
        })?;
        if status != 200 {
            let said: String = body.trim().chars().take(SAID_CHARS_MAX).collect();
            let said = Escaped::of(&said);
            return Err(Failure::Failed(format!("the reflector at http://{address} says: {said}")));
        }
        serde_json::from_str(&body).map_err(|_| failed("its answer is not that of a reflector".to_owned()))
    }
}

/// Requests a page, and returns the status and the body of the answer.
fn exchange(url: &str) -> Result<(u16, String), ureq::Error> {
    // The address is that of the reflector: no proxy stands in between, and it does not send anybody elsewhere.
    let agent = ureq::Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_recv_body(Some(BODY_PATIENCE))
        .build()
        .new_agent();
    let mut answer = agent.get(url).call()?;
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string()?;
    Ok((answer.status().as_u16(), body))
}
