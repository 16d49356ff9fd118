//! One document with its state, and the interpreter for both.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use regorus::{PolicyLengthConfig, Value, utils::limits::ExecutionTimerConfig};

use super::regex;

/// How long one request may be thought about.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Generated documents have lines of tens of kilobytes and some megabytes in all.
const LENGTH: (u32, usize, usize) = (64 << 10, 16 << 20, 200_000);

/// What a state is at first. Documents know it as `data.pstate`.
const EMPTY: &str = r#"{"pstate":{}}"#;

/// Why there is no decision.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The interpreter's own words: a syntax error, or a limit.
    #[error("{0}")]
    Rego(String),
    /// The package has another name.
    #[error("its package is not agent_policy")]
    Package,
    /// The rule is not there, or not defined for this request.
    #[error("the rule has no result")]
    Undefined,
    /// The rule's value is neither true, false, nor an object with `allowed`.
    #[error("the rule's result is neither a boolean nor an object with `allowed` and `ops`")]
    Result,
    /// The state cannot be changed as the rule wants.
    #[error("the rule's ops do not fit the state: {0}")]
    Ops(String),
}

/// A decision.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) allowed: bool,
    pub(super) prints: String,
}

#[derive(serde::Deserialize)]
struct Answer {
    allowed: bool,
    ops: Option<json_patch::Patch>,
}

/// A document in force.
pub(super) struct Engine {
    interpreter: regorus::Engine,
    /// The document says that what it refuses is to be allowed, for trying it out.
    lenient: bool,
}

type Result<T> = std::result::Result<T, EngineError>;

fn rego(error: impl std::fmt::Display) -> EngineError {
    EngineError::Rego(error.to_string().trim().to_owned())
}

impl Engine {
    /// `document` in either version of the language, with `state` or an empty one.
    pub(super) fn new(document: &str, state: Option<&str>) -> Result<Self> {
        let state = state.unwrap_or(EMPTY);
        // Version 1 wants `if` before every body; documents of before it have none.
        let interpreter = interpreter(document, state, false)
            .or_else(|error| interpreter(document, state, true).map_err(|_| error))?;
        let mut engine = Self { interpreter, lenient: false };
        let lenient = engine.allows("AllowRequestsFailingPolicy", &serde_json::json!({}));
        engine.lenient = lenient.is_ok_and(|verdict| verdict.allowed);
        Ok(engine)
    }

    /// The state, as JSON.
    pub(super) fn state(&self) -> String {
        self.interpreter.get_data().to_json_str().unwrap_or_else(|_| EMPTY.to_owned())
    }

    /// Evaluates a rule, and changes the state as it says.
    pub(super) fn allows(&mut self, rule: &str, input: &serde_json::Value) -> Result<Verdict> {
        self.interpreter.set_input_json(&input.to_string()).map_err(rego)?;
        let results = self.interpreter.eval_query(format!("data.agent_policy.{rule}"), false);
        let prints = self.interpreter.take_prints().unwrap_or_default().join(" ");
        let results = results.map_err(rego)?;
        let value = match results.result.as_slice() {
            [result] => match result.expressions.as_slice() {
                [expression] => Some(&expression.value),
                _ => None,
            },
            _ => None,
        };
        let allowed = match value {
            Some(Value::Bool(allowed)) => *allowed,
            Some(object @ Value::Object(_)) => self.obey(&object.to_json_str().map_err(rego)?)?,
            None | Some(Value::Undefined) if self.lenient => true,
            None | Some(Value::Undefined) => return Err(EngineError::Undefined),
            Some(_) => return Err(EngineError::Result),
        };
        Ok(Verdict { allowed: allowed || self.lenient, prints })
    }

    fn obey(&mut self, answer: &str) -> Result<bool> {
        let answer: Answer = serde_json::from_str(answer).map_err(|_| EngineError::Result)?;
        if let (true, Some(ops)) = (answer.allowed, answer.ops) {
            let broken = |error: &dyn std::fmt::Display| EngineError::Ops(error.to_string());
            let mut state = serde_json::from_str(&self.state()).map_err(|error| broken(&error))?;
            json_patch::patch(&mut state, &ops).map_err(|error| broken(&error))?;
            let state = Value::from_json_str(&state.to_string()).map_err(rego)?;
            self.interpreter.clear_data();
            self.interpreter.add_data(state).map_err(rego)?;
        }
        Ok(answer.allowed)
    }
}

fn interpreter(document: &str, state: &str, version_0: bool) -> Result<regorus::Engine> {
    let mut engine = regorus::Engine::new();
    engine.set_rego_v0(version_0);
    engine.set_strict_builtin_errors(false);
    engine.set_gather_prints(true);
    let (columns, bytes, lines) = LENGTH;
    if let (Some(max_col), Some(max_file_bytes), Some(max_lines), Some(check_interval)) =
        (NonZeroU32::new(columns), NonZeroUsize::new(bytes), NonZeroUsize::new(lines), NonZeroU32::new(64))
    {
        engine.set_policy_length_config(PolicyLengthConfig { max_col, max_file_bytes, max_lines });
        engine.set_execution_timer_config(ExecutionTimerConfig { limit: PATIENCE, check_interval });
    }
    regex::add_to(&mut engine).map_err(rego)?;
    engine.add_data(Value::from_json_str(state).map_err(rego)?).map_err(rego)?;
    let package = engine.add_policy("agent_policy".to_owned(), document.to_owned()).map_err(rego)?;
    if package == "data.agent_policy" { Ok(engine) } else { Err(EngineError::Package) }
}
