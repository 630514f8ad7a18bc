//! Pure: names that a Python package can't have: with them its project could be created and not be imported.

/// Words of the language.
const KEYWORDS: &str = "and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield";

/// Modules of Python's standard library, up to 3.14: a package of that name hides one from everything else.
const STANDARD_MODULES: &str = "
    abc aifc antigravity argparse array ast asynchat asyncio asyncore atexit audioop base64 bdb binascii
    bisect builtins bz2 calendar cgi cgitb chunk cmath cmd code codecs codeop collections colorsys
    compileall concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes curses
    dataclasses datetime dbm decimal difflib dis distutils doctest email encodings ensurepip enum errno
    faulthandler fcntl filecmp fileinput fnmatch fractions ftplib functools gc genericpath getopt
    getpass gettext glob graphlib grp gzip hashlib heapq hmac html http imaplib imghdr imp importlib
    inspect io ipaddress itertools json keyword lib2to3 linecache locale logging lzma mailbox mailcap
    marshal math mimetypes mmap modulefinder msilib msvcrt multiprocessing netrc nis nntplib nt ntpath
    nturl2path numbers opcode operator optparse os ossaudiodev pathlib pdb pickle pickletools pipes
    pkgutil platform plistlib poplib posix posixpath pprint profile pstats pty pwd py_compile pyclbr
    pydoc pydoc_data pyexpat queue quopri random re readline reprlib resource rlcompleter runpy sched
    secrets select selectors shelve shlex shutil signal site smtpd smtplib sndhdr socket socketserver
    spwd sqlite3 sre_compile sre_constants sre_parse ssl stat statistics string stringprep struct
    subprocess sunau symtable sys sysconfig syslog tabnanny tarfile telnetlib tempfile termios textwrap
    this threading time timeit tkinter token tokenize tomllib trace traceback tracemalloc tty turtle
    turtledemo types typing unicodedata unittest urllib uu uuid venv warnings wave weakref webbrowser
    winreg winsound wsgiref xdrlib xml xmlrpc zipapp zipfile zipimport zlib zoneinfo
";

/// What the host brings, and what the project has besides.
const TAKEN: &str = "coda_executor coda_qiskit coda_node tests";

/// Why a module can't have this name; none when it can.
pub fn conflict(module: &str) -> Option<&'static str> {
    let is_in = |list: &str| list.split_ascii_whitespace().any(|name| name == module);
    if is_in(KEYWORDS) {
        return Some("is a word of the Python language");
    }
    if is_in(STANDARD_MODULES) {
        return Some("is a module of Python's standard library");
    }
    is_in(TAKEN).then_some("is the name of another module of an executor's project")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_no_word_and_no_module_of_python() {
        for name in ["class", "import", "json", "signal", "concurrent", "tests", "coda_executor"] {
            assert!(conflict(name).is_some(), "{name}");
        }
        for name in ["acme", "acme_qpu", "jason", "classic", "qpu"] {
            assert_eq!(conflict(name), None, "{name}");
        }
    }
}
