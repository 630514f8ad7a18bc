//! Pure: the text of an event stream (`text/event-stream`) cut into events.

/// Longest line: what is longer is no event of a coordinator.
const MAX_LINE: usize = 4 << 20;

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextEvent {
    pub id: Option<String>,
    pub name: String,
    pub data: String,
}

/// A line is longer than any event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the event stream has a line of more than {MAX_LINE} bytes")]
pub struct LineTooLong;

/// Takes bytes as they come.
#[derive(Debug, Default)]
pub struct EventText {
    /// What is not a whole line yet.
    rest: Vec<u8>,
    event: TextEvent,
}

impl EventText {
    /// Adds bytes. Returns the events that are complete now.
    ///
    /// # Errors
    /// When a line is too long.
    pub fn add(&mut self, bytes: &[u8]) -> Result<Vec<TextEvent>, LineTooLong> {
        let mut complete = Vec::new();
        self.rest.extend_from_slice(bytes);
        while let Some(end) = memchr::memchr(b'\n', &self.rest) {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            complete.extend(self.take_line(line.trim_end_matches(['\r', '\n'])));
        }
        match self.rest.len() > MAX_LINE {
            true => Err(LineTooLong),
            false => Ok(complete),
        }
    }

    fn take_line(&mut self, line: &str) -> Option<TextEvent> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return (!event.data.is_empty()).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.event.id = Some(value.into()),
            "event" => self.event.name = value.into(),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            // Comments have no name, and other fields mean nothing here.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_wherever_the_bytes_are_cut() {
        let text = ": keep-alive\n\nid: 7\r\nevent: block\r\ndata: {\"a\":\ndata: 1}\n\nretry: 5\nid: 8\ndata:x\n\nid: 9\n";
        let event = |id: &str, name: &str, data: &str| TextEvent {
            id: Some(id.into()),
            name: name.into(),
            data: data.into(),
        };
        let expected = [event("7", "block", "{\"a\":\n1}"), event("8", "", "x")];
        for size in 1..text.len() {
            let mut events = EventText::default();
            let found: Vec<TextEvent> =
                text.as_bytes().chunks(size).flat_map(|bytes| events.add(bytes).unwrap()).collect();
            assert_eq!(found, expected, "{size}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut events = EventText::default();
        assert_eq!(events.add(&vec![b'x'; MAX_LINE]), Ok(Vec::new()));
        assert_eq!(events.add(b"x"), Err(LineTooLong));
    }
}
