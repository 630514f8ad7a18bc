//! Quantities that a plugin reports of its device, by name: fridge temperature, age of the calibration.
//!
//! The latest value of each is kept; names are those that Prometheus takes, and there is a limit to them, so that a
//! plugin which makes up names can't fill the memory.

use parking_lot::Mutex;
use std::collections::BTreeMap;

const MAX_NAME: usize = 64;
const MAX_GAUGES: usize = 128;

/// The latest values of a plugin's gauges.
#[derive(Debug, Default)]
pub struct Gauges(Mutex<BTreeMap<String, f64>>);

impl Gauges {
    /// Keeps the value.
    ///
    /// # Errors
    /// When the name is not one for Prometheus, or the plugin has too many gauges.
    pub fn set(&self, name: &str, value: f64) -> Result<(), String> {
        let mut values = self.0.lock();
        if let Some(kept) = values.get_mut(name) {
            *kept = value;
            return Ok(());
        }
        let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        if !name.starts_with(letter)
            || name.len() > MAX_NAME
            || !name.chars().all(|c| letter(c) || c.is_ascii_digit())
        {
            return Err(format!("a name is 1 to {MAX_NAME} letters, digits or _, the first no digit"));
        }
        if values.len() == MAX_GAUGES {
            return Err(format!("the plugin has {MAX_GAUGES} gauges already"));
        }
        values.insert(name.to_string(), value);
        Ok(())
    }

    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// Every gauge and its latest value, by name.
    pub fn values(&self) -> Vec<(String, f64)> {
        self.0.lock().iter().map(|(n, v)| (n.clone(), *v)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_value_of_a_good_name_is_kept() {
        let gauges = Gauges::default();
        gauges.set("fridge_kelvin", 0.02).unwrap();
        gauges.set("fridge_kelvin", 0.01).unwrap();
        for bad in ["", "2fast", "a b", "grün", &"x".repeat(65)] {
            assert!(gauges.set(bad, 1.0).is_err(), "{bad}");
        }
        assert_eq!(gauges.values(), [("fridge_kelvin".to_string(), 0.01)]);
    }

    #[test]
    fn made_up_names_come_to_an_end() {
        let gauges = Gauges::default();
        let taken = (0..1000).filter(|i| gauges.set(&format!("g{i}"), 0.0).is_ok()).count();
        assert_eq!(taken, MAX_GAUGES);
        assert!(gauges.set("g0", 1.0).is_ok());
    }
}
