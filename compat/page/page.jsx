// A front end as its author would write it: docs/ai-sdk.md, and nothing else. Built for both versions of the AI SDK.
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithToolCalls } from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const api = "/ai-sdk/chat";
const id = location.hash.slice(1);

function Chat({ initialMessages }) {
  const [text, setText] = useState("");
  const { messages, sendMessage, stop, regenerate, resumeStream, setMessages, status, error, addToolOutput } = useChat({
    id,
    messages: initialMessages,
    resume: true,
    transport: new DefaultChatTransport({ api }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
  });
  const stopReply = () => fetch(`${api}/${id}/stop`, { method: "POST" }).then(stop);
  const resume = () => {
    setMessages((all) => (all.at(-1)?.role === "assistant" ? all.slice(0, -1) : all));
    return resumeStream();
  };
  return (
    <main>
      <output id="status">{status}</output>
      <p id="error">{error?.message}</p>
      <ol>
        {messages.map((message) => (
          <li key={message.id} className={message.role}>
            {message.parts.map((part, index) => (
              <Part key={index} part={part} addToolOutput={addToolOutput} />
            ))}
          </li>
        ))}
      </ol>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          sendMessage({ text });
          setText("");
        }}
      >
        <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
        <button>Send</button>
      </form>
      <button onClick={stopReply}>Stop</button>
      <button onClick={() => regenerate()}>Regenerate</button>
      <button onClick={resume}>Resume</button>
    </main>
  );
}

function Part({ part, addToolOutput }) {
  if (part.type === "text") return <span className="text">{part.text}</span>;
  if (!part.type.startsWith("tool-")) return null;
  const tool = part.type.slice(5);
  return (
    <div className="tool" data-state={part.state}>
      {tool}: {JSON.stringify(part.output)}
      {part.state === "input-available" && !part.providerExecuted && (
        <button onClick={() => addToolOutput({ tool, toolCallId: part.toolCallId, output: "yes" })}>Confirm</button>
      )}
    </div>
  );
}

const initialMessages = await (await fetch(`${api}/${id}/messages`)).json();
createRoot(document.getElementById("root")).render(<Chat initialMessages={initialMessages} />);
