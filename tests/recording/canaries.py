"""Made-up credentials, each with a canary in it, and texts that only speak of such things.

Nothing here opens anything. What must not even be recorded (what stands under a sensitive name, in an address, or is a
known secret) is spelled with the word kestrel; what only must not be shown, because it looks like a key, with the word
canary. Of what is ordinary not a character may be missing.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final

CANARY: Final = "canary"
KESTREL: Final = "kestrel"
PRIVATE_KEY: Final = "-----BEGIN PRIVATE KEY-----\ncanary\ncanary\n-----END PRIVATE KEY-----"
LOOKS: Final = (
    "sk-canarycanary",
    "sk-proj-canary_0-canary",
    "sk-ant-api03-canarycanary",
    "rk-canarycanary",
    "pk-canarycanary",
    "sk_live_canarycanary",
    "rk_test_canarycanary",
    "sk_canary0canary",
    "whsec_canarycanary",
    "gsk_canarycanary00",
    "hf_canarycanarycanary",
    "xai-canarycanary00",
    "r8_canarycanary00",
    "pplx-canarycanary00",
    "nvapi-canarycanary00",
    "glpat-canarycanary00",
    "tvly-canarycanary00",
    "dop_v1_canarycanary00",
    "shpat_canarycanary00",
    "npm_canarycanarycanary",
    "pypi-AgE1canarycanary",
    "ghp_canarycanarycanary",
    "gho_canarycanarycanary",
    "ghu_canarycanarycanary",
    "ghs_canarycanarycanary",
    "ghr_canarycanarycanary",
    "github_pat_canarycanarycanary",
    "xoxb-canarycanary",
    "xoxp-0-canarycanary",
    "AKIACANARYCANARY0",
    "ASIACANARYCANARY0",
    "AIzaCanaryCanaryCanary_Canary",
    "ya29.canarycanary-canary",
    "eyJcanarycanary.canarycanary",
    "eyJcanarycanary.canarycanary.canary_canary",
    "eyJcanarycanary..canary.canarycanary.canary",  # an encrypted one
    PRIVATE_KEY,
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4\n\ncanary\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\ncanary\n-----END PGP PRIVATE KEY BLOCK-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----\ncanary\ncanary",  # without an end
    "Bearer canarycanarycanary",
    "bearer   canary0canary",
    "BEARER\tcanary.canary=0",
    "Token canary0canary",
    f"Basic {b64encode(b'canary:canary').decode()}",
    "basic canary0canary==",
    "https://canary:canary@host/path",
    "https://canary@host",
    "postgresql+asyncpg://user:canary@host:5432/name",
    "redis://:canary@host",
    "export DB_PASSWORD='canary'",
    'password = "canary"',
    "{'client_secret': 'canary'}",
    "https://host/v1?api_key=canary",
    "https://host/v1?a=1&key=canary&b=2",
    "https://host/?X-Amz-Signature=canary&X-Amz-Credential=canary",
    "https://host/back?code=canary#access_token=canary",
    "https:\\/\\/user:canary@host\\/path",
    "GET /v1/models?key=canary HTTP/1.1",
    "OPENAI_API_KEY=canary",
    "AccountKey=canary==;EndpointSuffix=host",
    'at {"credentials":"canary"} here',
    'he said {\\"apiKey\\": \\"canary\\"}',
    "api key: canary0canary",
    "Incorrect API key provided: canary0canary.",
    "x-api-key: canarycanarycanarycanary",
    "Authorization: Basic canary",
    "authorization: ApiKey canary",
    "token = call(api_key='canary')",
)
"""Texts that look like a secret. They are kept as they are, and hidden when they are shown."""

ADDRESSES: Final = (
    "https://kestrel:kestrel@host/path",
    "https://kestrel@host",
    "postgresql+asyncpg://user:kestrel@host:5432/name",
    "redis://:kestrel@host",
    "https://host/v1?api_key=kestrel",
    "https://host/v1?a=1&key=kestrel;kestrel?kestrel",
    "https://host/v1;session=kestrel?b=2",
    "https://host/?X-Amz-Signature=kestrel&X-Amz-Credential=kestrel",
    "https://host/back?code=kestrel#access_token=kestrel",
    "https://host/?%61pi%5Fkey=kestrel",
    "GET /v1/models?key=kestrel HTTP/1.1",
)
"""Addresses with a secret in them."""

WORDS: Final = (
    ("secret",),
    ("password",),
    ("pass", "word"),
    ("passphrase",),
    ("credential",),
    ("credentials",),
    ("authorization",),
    ("cookie",),
    ("jwt",),
    ("token",),
    ("api", "key"),
    ("api", "keys"),
    ("api", "token"),
    ("openai", "api", "key"),
    ("access", "token"),
    ("access", "tokens"),
    ("user", "refresh", "tokens"),
    ("id", "token"),
    ("csrf", "token"),
    ("token", "string"),
    ("client", "secret"),
    ("private", "key"),
    ("signing", "key"),
    ("signing", "secret"),
    ("encryption", "key"),
    ("secret", "access", "key"),
    ("access", "key", "id"),
    ("db", "password", "2"),
    ("account", "key"),
)


def spell(words: tuple[str, ...]) -> set[str]:
    """A name in every style."""
    capitals = [word.capitalize() for word in words]
    return {
        "_".join(words),
        "-".join(words),
        " ".join(words),
        ".".join(words),
        "_".join(words).upper(),
        "-".join(words).upper(),
        "-".join(capitals),
        " ".join(capitals),
        "".join(capitals),
        words[0] + "".join(capitals[1:]),
        "x_" + "_".join(words),
    }


NAMES: Final = tuple(sorted({name for words in WORDS for name in spell(words)} | {"apikey", "APIKEY", "APIKey"}))
"""Names under which nothing may be seen."""

ORDINARY_NAMES: Final = (
    *("input_tokens", "output_tokens_details", "max_tokens", "maxOutputTokens", "token_count", "promptTokenCount"),
    *("promptTokensDetails", "cached_tokens", "max_completion_tokens", "reasoning_tokens", "tokens", "tokens_used"),
    *("token_type", "token_limit", "prompt_token_ids", "tokenizer", "cache_creation_input_tokens", "budget_tokens"),
    *("prompt_cache_key", "key", "keys", "keyword", "primary_key", "monkey", "author", "session_id", "passed", "path"),
    *("id", "call_id", "type", "text", "content", "code", "signature", "encrypted_content", "compass", "basic"),
)
"""Names that only sound like it."""

ORDINARY: Final = (
    "",
    "[DONE]",
    "The secret of a good password is its length; a token is a word, and a key opens a door.",
    "Keep your secrets secret. Passwords, tokens, cookies and credentials are not for the log.",
    "Password: must be at least 8 characters. Token: see above. Secret: none.",
    "The bearer of this letter has basic rights. A basic understanding of tokens is the key to it.",
    "I used 1,234 input tokens and 56 output tokens; max_tokens=4096, token_count: 123456, tokens: 987654.",
    "max_token=4096, token: 1234567 and token=12,345 are counted. token usage=1234, token estimate=123456",
    "task-management, risk-assessments, desk-organisation, disk-utilisation, ask-me-anything",
    "hf_hub_download(repo_id) and pk_constraint_name and npm_config_registry and sk_buff_headers",
    "token = lexer.next_token()",
    "if token > 5 and tokens>4096: run --max-tokens 123456 --token-count 123456 --password-file a.txt --api-key KEY",
    "<label>Password</label><b>The token</b> is <token>123456</token>",
    "def log_in(user: str, password: str, token: Token | None = None) -> Session:",
    "if token == 'end' and secret != other: cookie = jar.pop()",
    "for key, value in headers.items(): print(f'{key}: {value}')",
    'session = {"token": token, "password": None}',
    "def connect(passwd=None, token = True, secret=null, cookie=undefined): api_key = False",
    'secrets = {} and tokens = [1, 2] and cookies = []; f"password={password}" and "token: {{ my.token }}"',
    "call_aB3dE5fG7hJ9kL1mN3pQ5rS7 msg_0123456789abcdef resp_68a1b2c3d4e5f6 chatcmpl-AbCdEf0123456789 toolu_01AbCdEf",
    "req_011CQabcdefghijkLMNOP fp_44709d6fcb rs_0123456789abcdef0123456789 file-AbCdEf012345 org-abcdef",
    "https://example.com/path/to/page?q=how+to+choose+a+password&page=2&lang=en#section-3",
    "https://example.com:8443/@vite/client?v=1a2b3c&country_code=49&keyword=abc",
    "See https://host/a%20b/c%2Fd?x=%7B%22a%22%3A1%7D and mail me@example.com, or http://[::1]:8080/@x.",
    "git@github.com:owner/name.git",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIabcdefghijklmnop me@host",
    "a very-long-name-of-something_that/has\\many.signs = 12345678901234567890",
    "La clé est sous le paillasson. 秘密のパスワードは何ですか。 Пароль — это слово.",
    "2024-05-06T07:08:09.123Z INFO token bucket refilled; cookie banner shown; retry after 6m0s",
)
"""Texts of which nothing may be missing."""
