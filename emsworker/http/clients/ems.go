// Package ems is a client of `ems http`. It needs the standard library alone, of Go 1.19 or later.
package ems

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const patience = 30 * time.Second // for a server that is away, busy or started again

// Client sends and fetches messages.
type Client struct{ URL, Token string }

// Message is one that was fetched. Body is its JSON; bytes are in BodyBase64.
type Message struct {
	Receipt, ID, Topic string
	Partition, Offset  int64
	Attempt            int
	Key, Tag           *string
	Headers            map[string]string
	Body               json.RawMessage
	BodyBase64         []byte `json:"body_base64"`
}

// Options of a send, a call, a fetch or a nack by name, like {"key": "k"}; /openapi.json lists them.
type Options map[string]any

// Error is an answer of the server.
type Error struct {
	Status        int
	Code, Message string
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Send sends a message and returns its id after the commit.
func (c *Client) Send(ctx context.Context, topic string, body any, options Options) (string, error) {
	message := with(options, "body", body)
	var answer struct{ Messages []struct{ ID string } }
	err := c.post(ctx, "/v1/topics/"+topic+"/messages", Options{"messages": []Options{message}}, &answer, patience)
	if err != nil {
		return "", err
	}
	return answer.Messages[0].ID, nil
}

// Call calls a task of a group of workers, and returns the id for Result.
func (c *Client) Call(ctx context.Context, topic, group, task string, args []any, options Options) (string, error) {
	var answer struct{ ID string }
	path := fmt.Sprintf("/v1/topics/%s/groups/%s/tasks/%s", topic, group, task)
	err := c.post(ctx, path, with(options, "args", args), &answer, patience)
	return answer.ID, err
}

// Fetch takes messages in hand; options are n (1), wait_s (20) and lease_s.
func (c *Client) Fetch(ctx context.Context, topic, group string, options Options) ([]Message, error) {
	var answer struct{ Messages []Message }
	wanted := Options{"wait_s": 20}
	for name, value := range options {
		wanted[name] = value
	}
	err := c.post(ctx, fmt.Sprintf("/v1/topics/%s/groups/%s/fetch", topic, group), wanted, &answer, patience)
	return answer.Messages, err
}

// Ack counts messages as done, once that is written down.
func (c *Client) Ack(ctx context.Context, receipts ...string) error {
	return c.post(ctx, "/v1/ack", Options{"receipts": receipts}, nil, patience)
}

// Nack counts attempts as failed; options are delay_s, dead and error.
func (c *Client) Nack(ctx context.Context, options Options, receipts ...string) error {
	return c.post(ctx, "/v1/nack", with(options, "receipts", receipts), nil, patience)
}

// Release gives messages back with no attempt charged.
func (c *Client) Release(ctx context.Context, receipts ...string) error {
	return c.post(ctx, "/v1/release", Options{"receipts": receipts}, nil, patience)
}

// Extend keeps messages in hand for at least this many seconds from now.
func (c *Client) Extend(ctx context.Context, seconds float64, receipts ...string) error {
	return c.post(ctx, "/v1/extend", Options{"receipts": receipts, "seconds": seconds}, nil, patience)
}

// Signal gives a flow a signal. It is not repeated by itself, because the flow would get it twice.
func (c *Client) Signal(ctx context.Context, topic, flow, name string, value any) error {
	given := Options{"flow": flow, "name": name, "value": value}
	return c.post(ctx, "/v1/topics/"+topic+"/signals", given, nil, 0)
}

// Result waits for the end of a call and decodes its value.
func (c *Client) Result(ctx context.Context, topic, id string, value any) error {
	var end struct {
		Status string
		Value  json.RawMessage
		Error  struct{ Message string }
	}
	err := c.Follow(ctx, "/v1/topics/"+topic+"/results/events", id, func(event string, data []byte) error {
		if event != "result" {
			return nil
		}
		return json.Unmarshal(data, &end)
	})
	if err == nil && end.Status != "done" {
		return &Error{409, end.Status, end.Error.Message}
	}
	if err == nil {
		err = json.Unmarshal(end.Value, value)
	}
	return err
}

// Run calls handle for each message, workers at a time, until the context ends. A handler that returns an error is
// retried as the group says; one that takes long keeps its message, for the lease is extended meanwhile.
func (c *Client) Run(ctx context.Context, topic, group string, workers int, lease time.Duration, handle func(Message) error) error {
	failed := make(chan error, workers)
	var all sync.WaitGroup
	for i := 0; i < workers; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for ctx.Err() == nil {
				messages, err := c.Fetch(ctx, topic, group, Options{"lease_s": lease.Seconds()})
				for _, message := range messages {
					err = c.handle(message, lease, handle)
				}
				if err != nil && ctx.Err() == nil {
					failed <- err
					return
				}
			}
		}()
	}
	all.Wait()
	close(failed)
	return <-failed
}

func (c *Client) handle(message Message, lease time.Duration, handle func(Message) error) error {
	ctx, done := context.WithCancel(context.Background()) // what was begun is ended and settled
	defer done()
	go func() {
		for tick := time.NewTicker(lease / 3); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				c.Extend(ctx, lease.Seconds(), message.Receipt)
			}
		}
	}()
	var err error
	if failure := handle(message); failure == nil {
		err = c.Ack(ctx, message.Receipt)
	} else {
		err = c.Nack(ctx, Options{"error": fmt.Sprintf("%.9999s", "error: "+failure.Error())}, message.Receipt)
	}
	var answer *Error
	if errors.As(err, &answer) && answer.Status == 409 {
		return nil // it took too long or is another's by now; it is delivered again
	}
	return err
}

// Follow calls on for each server-sent event of a path, which is opened anew from the last event on until its end.
func (c *Client) Follow(ctx context.Context, path, id string, on func(event string, data []byte) error) error {
	last := ""
	for until := time.Now().Add(patience); ; {
		answer, err := c.do(ctx, "GET", path+"?id="+url.QueryEscape(id), nil, last)
		if err == nil {
			var event, number string
			lines := bufio.NewReader(answer.Body)
			for line, err := lines.ReadString('\n'); err == nil; line, err = lines.ReadString('\n') {
				name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
				switch name {
				case "event":
					event, number = value, ""
				case "id":
					number = value
				case "data":
					if err := on(event, []byte(value)); err != nil {
						answer.Body.Close()
						return err
					}
					if number != "" {
						last = number
					}
					until = time.Now().Add(patience)
				}
			}
			answer.Body.Close()
			if strings.HasSuffix(last, "-end") {
				return nil
			}
			until = time.Now().Add(patience)
		} else if !passes(err) || time.Now().After(until) {
			return err
		}
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

func (c *Client) post(ctx context.Context, path string, body Options, into any, patience time.Duration) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	until := time.Now().Add(patience)
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		answer, err := c.do(ctx, "POST", path, raw, "")
		if err == nil {
			defer answer.Body.Close()
			if into == nil {
				return nil
			}
			return json.NewDecoder(answer.Body).Decode(into)
		}
		if !passes(err) || time.Now().After(until) {
			return err
		}
		if pause > 2*time.Second {
			pause = 2 * time.Second
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func (c *Client) do(ctx context.Context, method, path string, body []byte, last string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.Token)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Last-Event-ID", last)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode < 300 {
		return answer, nil
	}
	defer answer.Body.Close()
	said := struct{ Error Error }{Error{Code: "failed", Message: answer.Status}}
	raw, _ := io.ReadAll(answer.Body)
	json.Unmarshal(raw, &said)
	said.Error.Status = answer.StatusCode
	return nil, &said.Error
}

// passes tells of an error that may be over soon: the server is away, busy or stopping.
func passes(err error) bool {
	var answer *Error
	if errors.As(err, &answer) {
		return answer.Status == 503
	}
	return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

func sleep(ctx context.Context, pause time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
		return nil
	}
}

// with returns options with one more, and an id, so that a send can be repeated.
func with(options Options, name string, value any) Options {
	all := Options{name: value}
	if name != "receipts" {
		var b [16]byte
		rand.Read(b[:])
		b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
		all["id"] = fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	}
	for one, value := range options {
		all[one] = value
	}
	return all
}
