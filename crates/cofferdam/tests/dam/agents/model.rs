//! A model server with a script of two answers: the first asks for one shell
//! command, the one after its result says that the work is done.
//!
//! It speaks as much of the Messages API of Anthropic and of the Responses API of
//! OpenAI as Claude Code and Codex need, on the loopback and at a port of its own,
//! and keeps what it was asked. Keys are not looked at: whoever asks is answered.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};

/// The model's last words.
pub const DONE: &str = "All of it is done.";

/// What was asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// Path without the query.
    pub path: String,
    /// Names are in lower case.
    pub headers: BTreeMap<String, String>,
    /// Null when there was none.
    pub body: Value,
}

struct Script {
    command: String,
    requests: Mutex<Vec<Request>>,
    over: AtomicBool,
}

/// A server that runs as long as it is kept.
pub struct Model {
    address: SocketAddr,
    script: Arc<Script>,
    accepts: Option<JoinHandle<()>>,
}

impl Model {
    /// A model that asks for this shell command.
    pub fn that_runs(command: &str) -> Model {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = listener.local_addr().expect("address");
        let script = Arc::new(Script {
            command: command.to_owned(),
            requests: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let shared = Arc::clone(&script);
        let accepts = std::thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                if shared.over.load(Ordering::SeqCst) {
                    return;
                }
                let script = Arc::clone(&shared);
                // Whoever hangs up in the middle has asked nothing.
                std::thread::spawn(move || drop(script.serve(stream)));
            }
        });
        Model { address, script, accepts: Some(accepts) }
    }

    /// Where it is: `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All that arrived at this path, in order.
    pub fn asked(&self, path: &str) -> Vec<Request> {
        let requests = self.script.requests.lock().expect("not poisoned");
        requests.iter().filter(|request| request.path == path).cloned().collect()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.script.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.accepts.take().map(JoinHandle::join);
    }
}

impl Script {
    /// One request for each connection.
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let Some((method, request)) = read(&mut BufReader::new(&stream))? else { return Ok(()) };
        self.requests.lock().expect("not poisoned").push(request.clone());
        let body = &request.body;
        let events = match (method.as_str(), request.path.as_str()) {
            ("POST", "/v1/messages") => messages(&self.command, body),
            ("POST", "/v1/responses") => responses(&self.command, body),
            ("POST", "/v1/messages/count_tokens") => {
                return answer(&mut stream, "200 OK", &json!({"input_tokens": 1}));
            }
            // Codex asks for a WebSocket first.
            ("GET", "/v1/responses") => {
                return answer(&mut stream, "426 Upgrade Required", &json!({}));
            }
            ("HEAD" | "GET", _) => return answer(&mut stream, "200 OK", &json!({})),
            _ => return answer(&mut stream, "404 Not Found", &json!({})),
        };
        match events {
            Answer::Whole(value) => answer(&mut stream, "200 OK", &value),
            Answer::Events(events) => {
                head(&mut stream, "200 OK", "text/event-stream", None)?;
                for event in &events {
                    let kind = event["type"].as_str().expect("events have a type");
                    write!(stream, "event: {kind}\ndata: {event}\n\n")?;
                }
                stream.flush()
            }
        }
    }
}

/// The next request of a connection; none when there is none.
fn read(stream: &mut impl BufRead) -> std::io::Result<Option<(String, Request)>> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(None) };
    let (method, path) = (method.to_owned(), target.split('?').next().unwrap_or(target).to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = Vec::new();
    stream.take(length).read_to_end(&mut body)?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Ok(Some((method, Request { path, headers, body })))
}

fn head(
    stream: &mut impl Write,
    status: &str,
    kind: &str,
    length: Option<usize>,
) -> std::io::Result<()> {
    let length = length.map_or(String::new(), |length| format!("content-length: {length}\r\n"));
    write!(stream, "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{length}connection: close\r\n\r\n")
}

fn answer(stream: &mut impl Write, status: &str, value: &Value) -> std::io::Result<()> {
    let text = value.to_string();
    head(stream, status, "application/json", Some(text.len()))?;
    stream.write_all(text.as_bytes())
}

enum Answer {
    Whole(Value),
    Events(Vec<Value>),
}

/// The Messages API: a tool is asked for by a block `tool_use`, and its result comes
/// as a block `tool_result` of the last message.
fn messages(command: &str, body: &Value) -> Answer {
    let last = body["messages"].as_array().and_then(|all| all.last());
    let blocks = last.and_then(|last| last["content"].as_array());
    let has_result =
        blocks.is_some_and(|all| all.iter().any(|block| block["type"] == "tool_result"));
    let tools = body["tools"].as_array();
    let has_shell = tools.is_some_and(|all| all.iter().any(|tool| tool["name"] == "Bash"));
    let (block, empty, delta, stop) = if has_shell && !has_result {
        let input = json!({"command": command, "description": "Do the work"});
        let block = |input: &Value| json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": input});
        let delta = json!({"type": "input_json_delta", "partial_json": input.to_string()});
        (block(&input), block(&json!({})), delta, "tool_use")
    } else {
        let block = |text: &str| json!({"type": "text", "text": text});
        (block(DONE), block(""), json!({"type": "text_delta", "text": DONE}), "end_turn")
    };
    let usage = json!({"input_tokens": 1, "output_tokens": 1});
    let message = |content: Value, stop: Value| {
        json!({
            "type": "message", "id": "msg_1", "role": "assistant", "model": body["model"],
            "content": content, "stop_reason": stop, "stop_sequence": null, "usage": usage,
        })
    };
    if body["stream"] != true {
        return Answer::Whole(message(json!([block]), json!(stop)));
    }
    Answer::Events(vec![
        json!({"type": "message_start", "message": message(json!([]), Value::Null)}),
        json!({"type": "content_block_start", "index": 0, "content_block": empty}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null}, "usage": usage}),
        json!({"type": "message_stop"}),
    ])
}

/// The Responses API: a tool is asked for by an item `function_call`, its result comes
/// as an item `function_call_output`. For its own models Codex offers a tool `exec`
/// that runs JavaScript, asked for by `custom_tool_call`.
fn responses(command: &str, body: &Value) -> Answer {
    let input = body["input"].as_array().map_or(&[][..], Vec::as_slice);
    let is_result = |item: &Value| {
        matches!(item["type"].as_str(), Some("function_call_output" | "custom_tool_call_output"))
    };
    let offered = |name: &str| {
        offers(&body["tools"], name) || input.iter().any(|item| offers(&item["tools"], name))
    };
    let item = if input.iter().any(is_result) {
        None
    } else if offered("exec_command") {
        let arguments = json!({"cmd": command}).to_string();
        Some(json!({"type": "function_call", "name": "exec_command", "arguments": arguments}))
    } else if offered("exec") {
        let script = format!("text(await tools.exec_command({}));", json!({"cmd": command}));
        Some(json!({"type": "custom_tool_call", "name": "exec", "input": script}))
    } else {
        None
    };
    let mut item = item.unwrap_or_else(
        || json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": DONE, "annotations": []}]}),
    );
    item["id"] = json!("item_1");
    item["call_id"] = json!("call_1");
    item["status"] = json!("completed");
    let response = |status: &str, output: Value| {
        json!({
            "id": "resp_1", "object": "response", "created_at": 1, "model": body["model"],
            "status": status, "output": output,
            "usage": {
                "input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        })
    };
    let whole = response("completed", json!([item]));
    if body["stream"] != true {
        return Answer::Whole(whole);
    }
    Answer::Events(vec![
        json!({"type": "response.created", "response": response("in_progress", json!([]))}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": item}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": "response.completed", "response": whole}),
    ])
}

/// Whether a list of tools has one of this name, also in one of its groups.
fn offers(tools: &Value, name: &str) -> bool {
    tools.as_array().is_some_and(|all| {
        all.iter().any(|tool| tool["name"] == name || offers(&tool["tools"], name))
    })
}
