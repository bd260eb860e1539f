//! The part of HTTP that a command needs to read a reflector's pages: one request for each connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::settings::HTTP_DEFAULT;
use super::target::resolve;
use crate::failure::Failure;

/// The time limit of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The greatest length of an answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

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
        let answer = exchange(address, path).map_err(|error| failed(error.to_string()))?;
        let (head, rest) =
            answer.split_once("\r\n\r\n").ok_or_else(|| failed("it speaks no HTTP".to_owned()))?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        if status != "200" {
            return Err(Failure::Failed(format!("the reflector at http://{address} says: {}", rest.trim())));
        }
        serde_json::from_str(rest).map_err(|error| failed(format!("its answer is no JSON: {error}")))
    }
}

fn exchange(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // In the older version of the protocol the answer ends with the connection, and comes in one piece.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}
