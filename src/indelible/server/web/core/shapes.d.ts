// The server's JSON, as the page uses it: docs/http.md and docs/feed.md say what each field means.
// Types only, so nothing loads this file. The scripts name them in JSDoc (`@import`), and `make jscheck` checks them.

export type Status = "idle" | "pending" | "running" | "interrupting" | "requires_action" | "error";
export type IfBusy = "queue" | "steer" | "interrupt";

/** A block of a message. A running reply's also has what blocks.js adds. */
export interface Block {
  type: string;
  text?: string;
  id?: string;
  name?: string;
  arguments?: string;
  call_id?: string;
  output?: unknown;
  is_error?: boolean;
  /** Of a tool result; none: it ran, or failed if it `is_error`. */
  outcome?: "ran" | "failed" | "not_run" | "unknown";
  /** Why it did not run, or is unknown. */
  reason?: string;
  interrupted?: boolean;
  started?: boolean;
  progress?: string;
  started_at?: string | null;
  ended_at?: string | null;
  duration_s?: number | null;
  files?: Block[];
  url?: string | null;
  title?: string | null;
  quote?: string | null;
  media_type?: string;
  file_id?: string | null;
  data?: string | null;
  size?: number | null;
  metadata?: { compaction?: unknown; notice?: string } | null;
  /** of a live block: the part that appends to it */
  partId?: string;
  /** of a live block: nothing appends to it any more */
  closed?: boolean;
}

/** A piece of a running reply. */
export interface Part extends Block {
  id: string;
  call_id: string;
  delta?: string;
  message?: string;
  at?: string | null;
}

export interface Usage { output_tokens?: number }
export interface Message {
  id: string;
  parent_id: string | null;
  role: "system" | "user" | "assistant" | "tool" | "notice";
  blocks: Block[];
  partial: boolean;
  reason: string | null;
  continues: string | null;
  model: string | null;
  usage: Usage | null;
  cost_usd: number | null;
  timings: { started_at?: string } | null;
  created_at: string;
  siblings?: string[];
}
export interface Queued { id: string; if_busy: IfBusy; blocks: Block[]; model: string | null; created_at: string }
export interface Failure { kind?: string; message?: string; provider?: string | null; status?: number | null; detail?: string | null }
export interface Retry extends Failure { attempt?: string; number: number; delay_ms: number; retrying_at: string | null; receivedAt?: number }
export interface Call { id: string; name: string; arguments?: string }
export interface Action { calls: Call[]; deadline_at: string | null }
export interface Live { attempt: string; blocks: Block[]; startedAt?: number; model?: string | null }

/** What belongs to a chat beside its messages. */
export interface Details {
  title?: string | null;
  model?: string | null;
  debug?: "off" | "errors" | "all" | null;
  archived?: boolean;
  pinned?: boolean;
  labels?: string[];
  system?: string | null;
  usage?: Usage | null;
  unread?: boolean;
  read_only?: boolean;
}
export interface Snapshot extends Details {
  id: string;
  status: Status;
  turn: string | null;
  error: Failure | null;
  retry: Retry | null;
  action?: Action | null;
  queue: Queued[];
  live: Live | null;
  messages: Message[];
  has_more: boolean;
}

/** The events of a chat's feed, by kind. */
export interface FeedData {
  snapshot: Snapshot;
  message: { message: Message; attempt?: string | null; queued?: string | null };
  head: { head: string | null };
  attempt: { attempt: string; model?: string | null };
  part: { attempt: string; parts: Part[] };
  reset: { attempt: string };
  status: { status: Status; turn: string | null; ended?: { outcome: string } };
  queue: { queue: Queued[] };
  retry: Retry;
  action: Action;
  error: Failure;
  chat: Details;
  resync: { reason: string };
  end: { reason: "shutdown" | "deleted" | "slow" };
}
export type Kind = keyof FeedData;
export type FeedEvent = { [K in Kind]: [kind: K, data: FeedData[K]] }[Kind];

/** What is needed to act on a chat that may not be in the list. */
export interface ChatRef extends Details { id: string }
export interface Snippet { text: string; ranges?: [number, number][] }
export interface ChatSummary extends ChatRef {
  status: Status;
  version: number;
  updated_at: string;
  match?: { message_id: string | null; snippet: Snippet };
}
export interface Page<T> { items: T[]; next: string | null }
export type ListEvent =
  | [kind: "chats", data: { items: ChatSummary[] }]
  | [kind: "chat_changed", data: ChatSummary]
  | [kind: "chat_removed", data: { id: string }];

/** What a user sends. `text` or `content`. */
export interface NewMessage { text?: string; content?: Block[]; if_busy?: IfBusy; model?: string }
export interface NewChat { message?: string | Block[]; model?: string; system?: string }
export interface Delivered { id?: string; message?: string | null; queued?: string | null }

export interface Attempt {
  id: string;
  turn_id: string;
  step: number;
  number: number;
  model: string | null;
  outcome: string | null;
  error: Failure | null;
  usage: Usage | null;
  started_at: string;
  ended_at: string | null;
}
export interface Run { id: string; turn_id: string | null; kind: string; status: string; attempt_count: number }
export interface Exchange {
  method: string;
  url: string;
  status_code: number | null;
  started_at: string;
  head_at: string | null;
  ended_at: string;
  request_headers: Record<string, string>;
  request_body: string;
  response_headers: Record<string, string> | null;
  response_body: string;
}
export interface WholeRun extends Run { steps: { attempts: Exchange[] }[] }

export interface Model { id: string; default: boolean }
export interface SessionInfo { user: { name: string }; login: "none" | "required"; methods: string[] }
export interface Share { id: string; user: string | null; created_at: string; url?: string }
export interface StoredFile { id: string; name: string; media_type: string; size: number }
