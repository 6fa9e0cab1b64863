// The one page of this document: its state and everything that a user can do with it. Each part gets the parts that it needs;
// a component imports the parts that it shows or calls.
//
// Actions are optimistic where they can be undone, and one that fails says so in a toast; a message that fails to arrive
// stays in the outbox.

import { Api } from "../core/api.js";
import { Delivery } from "../core/delivery.js";
import { Drafts } from "../core/drafts.js";
import { Outbox } from "../core/outbox.js";
import { Store } from "../core/store.js";
import { Tab } from "../core/tab.js";
import { Attachments } from "./attachments.js";
import { ChatActions } from "./chatactions.js";
import { ChatList } from "./chatlist.js";
import { Conversation } from "./conversation.js";
import { EarlierMessages } from "./earlier.js";
import { MessageActions } from "./messageactions.js";
import { Navigation } from "./navigation.js";
import { NewChat } from "./newchat.js";
import { Preferences } from "./preferences.js";
import { ROOT, Session, USER } from "./session.js";
import { has, makeState } from "./state.js";
import { Toasts } from "./toasts.js";
import { Writing } from "./writing.js";

/** @import { Dialog } from "./state.js" */

const storage = localStorage;
const user = storage.getItem(USER); // of the last visit, until the server has said who it is
const { locks } = navigator;
const tab = new Tab({ storage: sessionStorage, locks, channel: locks ? undefined : new BroadcastChannel("indelible:tabs") });

export const store = new Store(makeState(), (draw) => requestAnimationFrame(draw));
export const { state } = store;
export const api = new Api(new URL("api/v1/", ROOT));
export const toasts = new Toasts(store);
export const preferences = new Preferences(() => store.changed());
const drafts = new Drafts({ storage, user, tab });
/** What is typed in dialogs and editors: in this browser only. */
export const unsaved = new Drafts({ storage, user, tab });
export const outbox = new Outbox({
  api, storage, user, locks, onChange: () => store.changed(),
  confirm: async () => { if (!state.isLoggedOut) await session.load(); },
  onDelivered: (entry, response) => conversation.noteDelivery(entry, response),
});
export const delivery = new Delivery(outbox);
export const list = new ChatList({ store, api, toasts });
export const newChat = new NewChat({ store, unsaved, outbox });
export const files = new Attachments({ store, api });
export const writing = new Writing({ store, toasts, drafts, outbox, files, newChat, preferences });
export const conversation = new Conversation({ store, api, toasts, outbox, delivery, list, writing, preferences, onReconnect: comeBack });
export const earlier = new EarlierMessages({ store, api, toasts, conversation });
export const navigation = new Navigation({ store, conversation, earlier, outbox });
export const chats = new ChatActions({ store, api, toasts, list, navigation });
export const messageActions = new MessageActions({ store, api, toasts, unsaved, writing });
export const session = new Session({ store, api, toasts, drafts, outbox, chats, loadRoutes, setUser, comeBack });

/** @param {Dialog | null} dialog */
export function show(dialog) {
  store.set({ dialog });
}

export async function start() {
  api.onUnauthorized = () => session.noteEnd();
  api.onReach = (isThere) => (isThere && !state.chat ? comeBack() : store.changed()); // no feed of a chat notices it
  addEventListener("hashchange", () => navigation.readAddress());
  addEventListener("online", comeBack);
  addEventListener("offline", () => store.changed());
  addEventListener("storage", ({ key }) => {
    if (!key?.startsWith("indelible:outbox:")) return;
    outbox.load();
    const made = outbox.resolve(state.place); // another tab has delivered what began this chat
    if (made !== state.place) conversation.adopt(made);
    store.changed();
  });
  addEventListener("pageshow", () => tab.noteShown());
  addEventListener("pagehide", () => {
    drafts.flushAll();
    void chats.finishDeletions();
    tab.noteLeft(); // last: there may be no room for it
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) drafts.flushAll();
    conversation.noteVisibility();
  });
  navigation.readAddress();
  navigation.showWaiting();
  await loadRoutes();
  conversation.noteRead();
  if (!state.sharedKey) {
    list.start();
    await session.start(); // the outbox has to know whose it is
    void outbox.flush();
    await loadModels();
  }
  store.changed();
}

async function loadModels() {
  if (!state.models.length) state.models = await api.listModels().then(({ items }) => items, () => []);
  store.changed();
}

async function loadRoutes() {
  state.routes = new Set(await fetch(new URL("web/routes.json", ROOT)).then((response) => response.json()).catch(() => []));
  if (!has(state, "PUT /chats/{chat_id}/draft") || state.sharedKey) return;
  Object.assign(drafts, { save: api.putDraft, load: api.getDraft });
  void writing.load();
}

/** What is typed and what waits belongs to this user: the server says so. @param {string} name */
function setUser(name) {
  const before = outbox.user;
  storage.setItem(USER, name);
  outbox.setUser(name);
  if (before === name) return;
  drafts.setUser(name);
  unsaved.setUser(name);
  navigation.showWaiting();
  void writing.load();
}

/** The server can be reached again, or somebody has logged in again. */
function comeBack() {
  if (!state.session) void session.load();
  conversation.hurry();
  void outbox.flush();
  if (!state.sharedKey) {
    list.refresh();
    void loadModels();
  }
  store.set({ isEarlierBroken: false });
}
