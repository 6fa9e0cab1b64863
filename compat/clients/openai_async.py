"""The official SDK, async: streams beside each other, and cancelled. `python openai_async.py URL RELEASE`."""

import asyncio
import sys

from openai import AsyncOpenAI


async def main(url: str) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def tell(number: int) -> None:
            stream = await client.responses.create(input=f"Number {number}", stream=True)
            events = [event async for event in stream]
            assert events[-1].response.output_text == f"You said: Number {number}"
            assert [event.sequence_number for event in events] == list(range(len(events)))

        await asyncio.gather(*(tell(number) for number in range(20)))
        running = await client.responses.create(input="hold", background=True)
        async with client.responses.stream(response_id=running.id) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta" and "word9" in event.snapshot:
                    break
        assert (await client.responses.cancel(running.id)).status == "cancelled"
        completion = await client.chat.completions.create(
            model="compat", messages=[{"role": "user", "content": "Hi"}], extra_headers={"X-Indelible-Chat": "async"}
        )
        assert completion.choices[0].message.content == "You said: Hi"


asyncio.run(main(sys.argv[1]))
print("ok")
