//! Who decides over calls: a Rego document, evaluated for each request.
//!
//! ```text
//!   request --> queue --> input (JSON) --> data.agent_policy.<RequestMessage> --true--> the call is done
//!                                              |     '- an object: {allowed, ops}: ops change the state
//!                                              '--anything else--> refused, by the rule's name
//! ```
//!
//! The engine has a thread of its own, for a document may compute as long as [`engine::PATIENCE`]; requests are decided
//! in the order in which they came. Without a document nothing is allowed. A document that was set, and the
//! state, are kept in the journal's directory: a worker that is killed comes back with them, not with the default.

use std::{
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use slog::Logger;
use tokio::sync::oneshot;

mod engine;
mod input;
mod regex;

use engine::{Engine, EngineError};
pub use input::InputError;

/// What an initdata disk brings: it is of the guest's owner, and comes before anything of the image's.
const INITDATA: &str = "/run/confidential-containers/initdata/policy.rego";
/// Where an image has its document, unless another place is named.
const DEFAULT: &str = "/etc/kata-opa/default-policy.rego";

/// Requests that wait for their decision; a host has far fewer at once.
const QUEUE: usize = 1024;

/// Why a call is not done.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The document says no. COMPAT: hosts show this text, and people's scripts look for "is blocked by policy".
    #[error("{rule} is blocked by policy: {prints}")]
    Denied {
        /// The name of the request's message, and of the rule.
        rule: String,
        /// What the document printed while it was evaluated.
        prints: String,
    },
    /// There is nothing to decide by.
    #[error("{rule} is blocked by policy: there is no policy document (looked for at {looked})")]
    Absent {
        /// The name of the request's message.
        rule: String,
        /// Paths.
        looked: String,
    },
    /// The request is not what it should be.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The document given to SetPolicy is none.
    #[error("the policy document is refused: {0}")]
    Document(EngineError),
    /// The rule has no result, or none that means anything.
    #[error("policy: {rule}: {source}")]
    Evaluation {
        /// The name of the request's message, and of the rule.
        rule: String,
        /// Why.
        source: EngineError,
    },
    /// The document or the state could not be kept.
    #[error("the policy cannot be kept in {path}: {source}")]
    Journal {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The engine's thread has too much to do, or is gone.
    #[error("the policy engine does not answer")]
    Unreachable,
}

type Result<T> = std::result::Result<T, PolicyError>;

struct Question {
    method: String,
    payload: Vec<u8>,
    answer: oneshot::Sender<Result<()>>,
}

/// The way to the engine.
#[derive(Debug)]
pub struct Policy {
    questions: mpsc::SyncSender<Question>,
}

impl Policy {
    /// Starts the engine: with what an earlier worker left in `kept`, else with what an initdata disk brought, else
    /// with `file` or the image's own.
    pub fn start(kept: &Path, file: Option<&Path>, log: Logger) -> io::Result<Self> {
        let (questions, asked) = mpsc::sync_channel::<Question>(QUEUE);
        let judge = Judge::new(kept.join("policy"), file, log);
        thread::Builder::new()
            .name("policy".to_owned())
            .stack_size(4 << 20)
            .spawn(move || judge.work(asked))?;
        Ok(Self { questions })
    }

    /// Decides over a call of grpc.AgentService. SetPolicy is also done by it.
    pub async fn decide(&self, method: &str, payload: &[u8]) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let question = Question { method: method.to_owned(), payload: payload.to_vec(), answer };
        self.questions.try_send(question).map_err(|_| PolicyError::Unreachable)?;
        answered.await.map_err(|_| PolicyError::Unreachable)?
    }
}

/// What the engine's thread owns.
struct Judge {
    engine: Option<Engine>,
    kept: PathBuf,
    looked: String,
    log: Logger,
}

impl Judge {
    fn new(kept: PathBuf, file: Option<&Path>, log: Logger) -> Self {
        let defaults = [Path::new(INITDATA), file.unwrap_or(Path::new(DEFAULT))];
        let looked = defaults.map(|path| path.display().to_string()).join(", ");
        let mut judge = Self { engine: None, kept, looked, log };
        let own = judge.kept.join("document.rego");
        // A document that is there and cannot be used is never passed over for a laxer one.
        let found = std::iter::once(own.as_path()).chain(defaults).find(|path| path.exists());
        if let Some(path) = found
            && let Err(error) = judge.load(path)
        {
            slog::error!(judge.log, "the policy cannot be used, so nothing is allowed";
                "path" => %path.display(), "error" => %error);
        }
        judge
    }

    fn load(&mut self, path: &Path) -> Result<()> {
        let failed = |source| PolicyError::Journal { path: path.to_owned(), source };
        let document = fs::read_to_string(path).map_err(failed)?;
        let state = match fs::read_to_string(self.kept.join("state.json")) {
            Ok(state) => Some(state),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        self.engine = Some(Engine::new(&document, state.as_deref()).map_err(PolicyError::Document)?);
        slog::info!(self.log, "policy in force"; "path" => %path.display());
        Ok(())
    }

    fn work(mut self, asked: mpsc::Receiver<Question>) {
        for Question { method, payload, answer } in asked {
            let decided = catch_unwind(AssertUnwindSafe(|| self.decide(&method, &payload)));
            let decided = decided.unwrap_or_else(|_| {
                // Its state may be half changed, so it decides no more.
                self.engine = None;
                slog::error!(self.log, "the policy engine panicked; from now on nothing is allowed");
                Err(PolicyError::Unreachable)
            });
            if let Err(error) = &decided {
                slog::warn!(self.log, "a call is not permitted"; "method" => &method, "error" => %error);
            }
            // Whoever asked may be gone.
            let _ = answer.send(decided);
        }
    }

    fn decide(&mut self, method: &str, payload: &[u8]) -> Result<()> {
        let (rule, input) = input::of(method, payload)?;
        let Some(engine) = &mut self.engine else {
            return Err(PolicyError::Absent { rule, looked: self.looked.clone() });
        };
        let before = engine.state();
        let verdict = engine
            .allows(&rule, &input)
            .map_err(|source| PolicyError::Evaluation { rule: rule.clone(), source })?;
        if !verdict.allowed {
            return Err(PolicyError::Denied { rule, prints: verdict.prints });
        }
        let after = engine.state();
        if method == "SetPolicy" {
            let document = input.get("policy").and_then(serde_json::Value::as_str).unwrap_or_default();
            let next = Engine::new(document, None).map_err(PolicyError::Document)?;
            // The state goes first: with the old document, an empty one allows no more than was allowed at boot.
            self.keep("state.json", &next.state())?;
            self.keep("document.rego", document)?;
            self.engine = Some(next);
            slog::info!(self.log, "policy set"; "bytes" => document.len());
        } else if after != before {
            self.keep("state.json", &after)?;
        }
        Ok(())
    }

    fn keep(&self, name: &str, text: &str) -> Result<()> {
        let path = self.kept.join(name);
        let new = self.kept.join(format!("{name}.new"));
        fs::create_dir_all(&self.kept)
            .and_then(|()| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|source| PolicyError::Journal { path, source })
    }
}
